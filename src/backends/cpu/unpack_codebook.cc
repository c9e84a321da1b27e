// IQ4_NL, IQ4_XS, MXFP4 and NVFP4: four-bit codes that index a table of small integers. Layouts as
// in ggml's ggml-common.h and ggml-quants.c; E2M1 values are doubled to be integers and their scale
// halved, as ggml does.
#include <cmath>

#include "backends/cpu/block_bytes.h"
#include "backends/cpu/unpack.h"
#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

constexpr std::int8_t kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
constexpr std::int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Element i of `count` in the low nibble of byte i, element i + count in its high nibble.
void look_up(const std::byte* bytes, int count, const std::int8_t* table, std::int8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = table[low_nibble(bytes[i])];
    codes[i + count] = table[high_nibble(bytes[i])];
  }
}

// d, scale high bits u16, scale low nibbles[4], codes[128].
void unpack_iq4_xs(const std::byte* data, int j, UnpackedBlock* out) {
  const int low = static_cast<int>(data[4 + j / 2]) >> (4 * (j % 2)) & 15;
  const int high = u16_at(data + 2) >> (2 * j) & 3;
  out->scale_steps[0] = static_cast<std::int8_t>((low | high << 4) - 32);
  out->super_scale_f16 = u16_at(data);
  look_up(data + 8 + 16 * j, kBlockColumns / 2, kNonLinear, out->codes);
}

// Unsigned E4M3, bias 7, the top bit ignored; 0x7F is NaN in the OCP format and 0 in ggml's tables.
float ue4m3(std::byte byte) {
  const int bits = static_cast<int>(byte) & 0x7F;
  if (bits == 0x7F) return 0.0F;
  const int exponent = bits >> 3 & 15;
  const auto mantissa = static_cast<float>(bits & 7);
  return exponent == 0 ? std::ldexp(mantissa, -9)
                       : std::ldexp(1.0F + mantissa / 8.0F, exponent - 7);
}

// scales[4], codes[32]: 64 weights, 16 under each scale.
void unpack_nvfp4(const std::byte* data, int half, float tensor_scale, UnpackedBlock* out) {
  for (int g = 0; g < 2; ++g) {
    const int s = 2 * half + g;
    out->scale_f32[g] = ue4m3(data[s]) * 0.5F * tensor_scale;
    look_up(data + 4 + 8 * s, 8, kE2M1Doubled, out->codes + 16 * g);
  }
}

}  // namespace

void unpack_codebook(WeightFormat format, const std::byte* row, std::int64_t block,
                     float tensor_scale, UnpackedBlock* out) {
  const BlockShape shape = block_shape(format);
  const std::int64_t per_stored_block = shape.columns / kBlockColumns;
  const std::byte* data = row + block / per_stored_block * shape.bytes;
  const int j = static_cast<int>(block % per_stored_block);
  switch (format) {
    case WeightFormat::kIQ4_NL:
      out->scale_f16 = u16_at(data);
      look_up(data + 2, kBlockColumns / 2, kNonLinear, out->codes);
      return;
    case WeightFormat::kIQ4_XS: unpack_iq4_xs(data, j, out); return;
    case WeightFormat::kMXFP4:
      out->scale_f32[0] = std::ldexp(1.0F, static_cast<int>(data[0]) - 128);
      look_up(data + 1, kBlockColumns / 2, kE2M1Doubled, out->codes);
      return;
    case WeightFormat::kNVFP4: unpack_nvfp4(data, j, tensor_scale, out); return;
    default: CHECK(false);
  }
}

}  // namespace kun
