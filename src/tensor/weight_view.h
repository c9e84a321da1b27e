// A weight matrix as the checkpoint stores it: codes, and the scales that give them meaning.
//
// This is the file's layout, not a kernel's. Ops::pack turns it into whatever layout a device
// multiplies fastest, so a new format and a new kernel never need to know each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tensor/weight_planes.h"

namespace kun {

// GGUF block types keep ggml's names; the layouts are in dequantize.cc.
enum class WeightFormat : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
  kNVFP4,

  // Codes alone; scales and zero points lie in planes of their own (weight_planes.h). What follows
  // are the layouts of safetensors checkpoints, [row, col] = [output, input] feature.
  kF8E4M3,    // one byte each, row by row
  kF8E5M2,    // the same
  kE2M1,      // nibbles row by row, the even column in the low one
  kInt8,      // signed bytes, row by row
  kRowInt4,   // unsigned, 32-bit words along the columns, low bits first (compressed-tensors)
  kRowInt8,   // the same
  kGptqInt4,  // word [col / 8][row] holds 8 columns, low bits first
  kGptqInt8,  // word [col / 4][row] holds 4 columns
  kAwqInt4,   // word [col][row / 8] holds 8 rows in the order 0 2 4 6 1 3 5 7
};

// True when a weight's value needs the planes.
constexpr bool has_planes(WeightFormat format) {
  return format >= WeightFormat::kF8E4M3;
}

// What `--weight-format` makes of weights in memory.
enum class WeightTarget : std::uint8_t {
  kAuto,      // the fastest container that loses nothing that matters
  kAsStored,  // a container that loses nothing at all, or bfloat16
  kBF16,
  kInt8,  // 8-bit codes, a scale per 32 columns
  kInt4,  // 4-bit codes, a scale and a minimum per 32 columns
};

// How much of WeightTarget a matrix bears.
enum class WeightRole : std::uint8_t {
  kOrdinary,
  kSensitive,  // never below 8 bits: the output layer
  kExact,      // kept as stored: routers, whose small differences choose experts
};

// Consecutive columns that share one stored block, and that block's size.
struct BlockShape {
  int columns = 1;
  int bytes = 0;
};
BlockShape block_shape(WeightFormat format);

// "Q4_K", "BF16", ...
std::string_view name(WeightFormat format);

// `data` holds rows x cols weights row by row (unless the format says otherwise), each row a whole
// number of blocks; no alignment is promised. The bytes live as long as the checkpoint they came
// from.
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  std::int64_t rows = 0;  // output features
  std::int64_t cols = 0;  // input features
  std::span<const std::byte> data;
  float tensor_scale = 1.0F;  // NVFP4's second scale; 1 elsewhere
  WeightPlanes planes{};      // only if has_planes(format)
  WeightRole role = WeightRole::kOrdinary;

  // Of formats that go row by row; of the others a row's share of the bytes.
  std::int64_t row_bytes() const {
    const BlockShape block = block_shape(format);
    return (cols + block.columns - 1) / block.columns * block.bytes;
  }

  // Rows [first, first + count) as a view of the same bytes.
  WeightView slice_rows(std::int64_t first, std::int64_t count) const;
};

// Writes row `row` as `view.cols` floats, exactly as ggml's reference would; of formats with planes
// (code - zero) * scale, rounded once.
void dequantize_row(const WeightView& view, std::int64_t row, float* out);

}  // namespace kun
