// Takes stored blocks apart into codes, scales and mins without rounding anything, so that a packed
// matrix means exactly what its checkpoint says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backends/cpu/kernels.h"
#include "tensor/weight_view.h"

namespace kun {

// 32 consecutive weights: w[i] = scale[g] * codes[i] + min[g], g = i / group. Codes are as the
// panel stores them once its code_offset is subtracted: 4-bit formats -8..7 or, with mins, 0..15;
// k6Super16 -32..31; k6SuperMin 0..31.
// Scales are kept in the panel's kind: bits of an F16, an F32, or steps of the super scale.
struct UnpackedBlock {
  std::int8_t codes[kBlockColumns];
  std::uint16_t scale_f16;
  std::uint16_t min_f16;
  float scale_f32[2];
  std::int8_t scale_steps[2];
  std::int8_t min_steps[2];
  std::uint16_t super_scale_f16;
  std::uint16_t super_min_f16;
};

// The grouped panel format that represents `format` exactly; empty for F32, F16 and BF16.
std::optional<PanelFormat> grouped_panel_format(WeightFormat format);

// Unpacks columns [32 * block, 32 * block + 32) of the row that starts at `row`.
// `tensor_scale` is NVFP4's. Requires: grouped_panel_format(format).
void unpack_block(WeightFormat format, const std::byte* row, std::int64_t block, float tensor_scale,
                  UnpackedBlock* out);

// Per family, used by unpack_block.
void unpack_classic(WeightFormat format, const std::byte* row, std::int64_t block,
                    UnpackedBlock* out);
void unpack_k_quant(WeightFormat format, const std::byte* row, std::int64_t block,
                    UnpackedBlock* out);
// Of block j (0..7) of one Q4_K or Q5_K super-block: all but the codes.
void unpack_q4_k_scales(const std::byte* data, int j, UnpackedBlock* out);
void unpack_codebook(WeightFormat format, const std::byte* row, std::int64_t block,
                     float tensor_scale, UnpackedBlock* out);

}  // namespace kun
