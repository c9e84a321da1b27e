// A weight matrix as the checkpoint stores it: codes, and the scales that give them meaning.
//
// This is the file's layout, not a kernel's. Ops::pack turns it into whatever layout a device
// multiplies fastest, so a new format and a new kernel never need to know each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

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
};

// Consecutive columns that share one stored block, and that block's size.
struct BlockShape {
  int columns = 1;
  int bytes = 0;
};
BlockShape block_shape(WeightFormat format);

// "Q4_K", "BF16", ...
std::string_view name(WeightFormat format);

// `data` holds rows x cols weights row by row, each row a whole number of blocks; no alignment is
// promised. The bytes live as long as the checkpoint they came from.
struct WeightView {
  WeightFormat format = WeightFormat::kF32;
  std::int64_t rows = 0;  // output features
  std::int64_t cols = 0;  // input features
  std::span<const std::byte> data;
  float tensor_scale = 1.0F;  // NVFP4's second scale; 1 elsewhere

  std::int64_t row_bytes() const {
    const BlockShape block = block_shape(format);
    return cols / block.columns * block.bytes;
  }
};

// Writes row `row` as `view.cols` floats, exactly as ggml's reference would.
void dequantize_row(const WeightView& view, std::int64_t row, float* out);

}  // namespace kun
