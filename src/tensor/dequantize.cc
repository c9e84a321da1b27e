// Reference dequantizers: what each stored block means, written for reading. Kernels are tested
// against these, and these against vectors that ggml computed, bit for bit. The layouts are ggml's
// (ggml-common.h and dequantize_row_* in ggml-quants.c of ggml-org/ggml).
//
// Integer arithmetic comes first, then each float operation rounds once: the file is built with
// -ffp-contract=off, because a fused multiply-add would round differently.
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "tensor/float_formats.h"
#include "tensor/plane_values.h"
#include "tensor/weight_view.h"

namespace kun {
namespace {

static_assert(std::endian::native == std::endian::little, "blocks are read as they lie in memory");

using Byte = std::uint8_t;

// Values of the 4-bit codes of IQ4_NL and IQ4_XS.
constexpr std::array<int, 16> kNonLinear4{-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// Twice the value of an E2M1 code: sign, two bits of exponent, one of mantissa.
constexpr std::array<int, 16> kE2M1Doubled{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

std::uint16_t load_u16(const Byte* bytes) {
  std::uint16_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

std::uint32_t load_u32(const Byte* bytes) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float load_f16(const Byte* bytes) {
  return f16_to_f32(load_u16(bytes));
}

int low(Byte byte) {
  return byte & 15;
}
int high(Byte byte) {
  return byte >> 4;
}

// Bit `index` of `bits`, as 0 or 1.
int bit(std::uint32_t bits, int index) {
  return static_cast<int>((bits >> index) & 1U);
}

// d f16, q i8[32]
void q8_0_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  for (int i = 0; i < 32; ++i)
    y[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

// d f16, b[16]: low nibbles are the first 16 values, high nibbles the others
void q4_0_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  const Byte* b = block + 2;
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(low(b[i]) - 8);
    y[i + 16] = d * static_cast<float>(high(b[i]) - 8);
  }
}

// d f16, m f16, b[16]
void q4_1_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  const Byte* b = block + 4;
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(low(b[i])) + m;
    y[i + 16] = d * static_cast<float>(high(b[i])) + m;
  }
}

// d f16, h u32 (the fifth bits), b[16]
void q5_0_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  const std::uint32_t h = load_u32(block + 2);
  const Byte* b = block + 6;
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>((low(b[i]) | bit(h, i) << 4) - 16);
    y[i + 16] = d * static_cast<float>((high(b[i]) | bit(h, i + 16) << 4) - 16);
  }
}

// d f16, m f16, h u32, b[16]
void q5_1_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  const float m = load_f16(block + 2);
  const std::uint32_t h = load_u32(block + 4);
  const Byte* b = block + 8;
  for (int i = 0; i < 16; ++i) {
    y[i] = d * static_cast<float>(low(b[i]) | bit(h, i) << 4) + m;
    y[i + 16] = d * static_cast<float>(high(b[i]) | bit(h, i + 16) << 4) + m;
  }
}

// s[16] (scale and min nibbles of 16 values each), b[64], d f16, dmin f16
void q2_k_block(const Byte* block, float* y) {
  const Byte* s = block;
  const Byte* b = block + 16;
  const float d = load_f16(block + 80);
  const float dmin = load_f16(block + 82);
  for (int k = 0; k < 16; ++k) {  // k = 8 * half + 2 * shift pair + run
    const Byte* run = b + 32 * (k / 8) + 16 * (k % 2);
    const int shift = 2 * (k % 8 / 2);
    const float scale = d * static_cast<float>(low(s[k]));
    const float min = dmin * static_cast<float>(high(s[k]));
    for (int l = 0; l < 16; ++l) {
      y[16 * k + l] = scale * static_cast<float>((run[l] >> shift) & 3) - min;
    }
  }
}

// hm[32] (third bits, inverted: a clear bit subtracts 4), b[64], s[12] (16 six-bit scales), d f16
void q3_k_block(const Byte* block, float* y) {
  const Byte* hm = block;
  const Byte* b = block + 32;
  const Byte* s = block + 96;
  const float d = load_f16(block + 108);
  for (int k = 0; k < 16; ++k) {
    const int low_bits = k < 8 ? low(s[k]) : high(s[k - 8]);
    const int high_bits = (s[8 + k % 4] >> (2 * (k / 4))) & 3;
    const float scale = d * static_cast<float>((low_bits | high_bits << 4) - 32);
    const int half = k / 8;
    const int pair = k % 8 / 2;
    const int first = 16 * (k % 2);
    for (int l = 0; l < 16; ++l) {
      const int two = (b[32 * half + first + l] >> (2 * pair)) & 3;
      const int third = bit(hm[first + l], 4 * half + pair) != 0 ? 0 : 4;
      y[16 * k + l] = scale * static_cast<float>(two - third);
    }
  }
}

struct ScaleMin {
  int scale;
  int min;
};

// Pair `j` of the 8 six-bit scales and mins in the 12 bytes of Q4_K and Q5_K.
ScaleMin scale_min(const Byte* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {low(s[j + 4]) | (s[j - 4] >> 6) << 4, high(s[j + 4]) | (s[j] >> 6) << 4};
}

// d f16, dmin f16, s[12], b[128]
void q4_k_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  const Byte* b = block + 16;
  for (int j = 0; j < 8; ++j) {  // 32 values each; two of them share 32 bytes
    const ScaleMin pair = scale_min(block + 4, j);
    const float scale = d * static_cast<float>(pair.scale);
    const float min = dmin * static_cast<float>(pair.min);
    for (int l = 0; l < 32; ++l) {
      const Byte byte = b[32 * (j / 2) + l];
      y[32 * j + l] = scale * static_cast<float>(j % 2 == 0 ? low(byte) : high(byte)) - min;
    }
  }
}

// d f16, dmin f16, s[12], h[32] (fifth bits: bit j of h[l]), b[128]
void q5_k_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  const float dmin = load_f16(block + 2);
  const Byte* h = block + 16;
  const Byte* b = block + 48;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin pair = scale_min(block + 4, j);
    const float scale = d * static_cast<float>(pair.scale);
    const float min = dmin * static_cast<float>(pair.min);
    for (int l = 0; l < 32; ++l) {
      const Byte byte = b[32 * (j / 2) + l];
      const int code = (j % 2 == 0 ? low(byte) : high(byte)) | bit(h[l], j) << 4;
      y[32 * j + l] = scale * static_cast<float>(code) - min;
    }
  }
}

// ql[128], qh[64], sc i8[16], d f16
void q6_k_block(const Byte* block, float* y) {
  const float d = load_f16(block + 208);
  for (int k = 0; k < 16; ++k) {  // 16 values each; k = 8 * half + 2 * quarter + run
    const int half = k / 8;
    const int quarter = k % 8 / 2;
    const Byte* ql = block + 64 * half + 32 * (quarter % 2) + 16 * (k % 2);
    const Byte* qh = block + 128 + 32 * half + 16 * (k % 2);
    const float scale = d * static_cast<float>(static_cast<std::int8_t>(block[192 + k]));
    for (int l = 0; l < 16; ++l) {
      const int four = quarter < 2 ? low(ql[l]) : high(ql[l]);
      const int two = (qh[l] >> (2 * quarter)) & 3;
      y[16 * k + l] = scale * static_cast<float>((four | two << 4) - 32);
    }
  }
}

// d f16, b[16]
void iq4_nl_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  for (std::size_t i = 0; i < 16; ++i) {
    const Byte byte = block[2 + i];
    y[i] = d * static_cast<float>(kNonLinear4[byte & 15U]);
    y[i + 16] = d * static_cast<float>(kNonLinear4[byte >> 4U]);
  }
}

// d f16, sh u16 (upper two bits of 8 scales), sl[4] (their lower nibbles), b[128]
void iq4_xs_block(const Byte* block, float* y) {
  const float d = load_f16(block);
  const int sh = load_u16(block + 2);
  const Byte* sl = block + 4;
  const Byte* b = block + 8;
  for (int j = 0; j < 8; ++j) {
    const int low_bits = j % 2 == 0 ? low(sl[j / 2]) : high(sl[j / 2]);
    const float scale = d * static_cast<float>((low_bits | ((sh >> (2 * j)) & 3) << 4) - 32);
    for (int i = 0; i < 16; ++i) {
      const Byte byte = b[16 * j + i];
      y[32 * j + i] = scale * static_cast<float>(kNonLinear4[byte & 15U]);
      y[32 * j + i + 16] = scale * static_cast<float>(kNonLinear4[byte >> 4U]);
    }
  }
}

// e u8, b[16]: E2M1 codes times 2^(e - 127). The table is doubled, so the scale is halved.
void mxfp4_block(const Byte* block, float* y) {
  const float scale = std::ldexp(1.0F, static_cast<int>(block[0]) - 128);
  for (std::size_t i = 0; i < 16; ++i) {
    const Byte byte = block[1 + i];
    y[i] = scale * static_cast<float>(kE2M1Doubled[byte & 15U]);
    y[i + 16] = scale * static_cast<float>(kE2M1Doubled[byte >> 4U]);
  }
}

// Half the value of an unsigned E4M3 scale: bias 7, no infinities; 0x7F (NaN) counts as zero, as it
// does in ggml. The top bit is not looked at.
float half_ue4m3(Byte code) {
  const int exponent = (code >> 3) & 15;
  const int mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return 0.0F;
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), -10);
  return std::ldexp(static_cast<float>(8 + mantissa), exponent - 11);
}

// d ue4m3[4] (one scale for 16 values), b[32]
void nvfp4_block(const Byte* block, float* y) {
  const Byte* b = block + 4;
  for (int s = 0; s < 4; ++s) {
    const float scale = half_ue4m3(block[s]);
    for (int i = 0; i < 8; ++i) {
      const Byte byte = b[8 * s + i];
      y[16 * s + i] = scale * static_cast<float>(kE2M1Doubled[byte & 15U]);
      y[16 * s + i + 8] = scale * static_cast<float>(kE2M1Doubled[byte >> 4U]);
    }
  }
}

using BlockFunction = void (*)(const Byte* block, float* y);

BlockFunction block_function(WeightFormat format) {
  switch (format) {
    case WeightFormat::kQ8_0: return q8_0_block;
    case WeightFormat::kQ4_0: return q4_0_block;
    case WeightFormat::kQ4_1: return q4_1_block;
    case WeightFormat::kQ5_0: return q5_0_block;
    case WeightFormat::kQ5_1: return q5_1_block;
    case WeightFormat::kQ2_K: return q2_k_block;
    case WeightFormat::kQ3_K: return q3_k_block;
    case WeightFormat::kQ4_K: return q4_k_block;
    case WeightFormat::kQ5_K: return q5_k_block;
    case WeightFormat::kQ6_K: return q6_k_block;
    case WeightFormat::kIQ4_NL: return iq4_nl_block;
    case WeightFormat::kIQ4_XS: return iq4_xs_block;
    case WeightFormat::kMXFP4: return mxfp4_block;
    case WeightFormat::kNVFP4: return nvfp4_block;
    default: break;
  }
  CHECK(false);  // a weight format without a dequantizer
  return nullptr;
}

// Formats without blocks, whole rows at a time: a call for each value would cost more than it does.
void plain_row(const WeightView& view, const Byte* row, float* out) {
  const auto count = static_cast<std::size_t>(view.cols);
  if (view.format == WeightFormat::kF32) {
    std::memcpy(out, row, count * sizeof(float));
  } else if (view.format == WeightFormat::kBF16) {
    for (std::size_t i = 0; i < count; ++i) out[i] = bf16_to_f32(load_u16(row + 2 * i));
  } else {
    for (std::size_t i = 0; i < count; ++i) out[i] = load_f16(row + 2 * i);
  }
  if (view.tensor_scale == 1.0F) return;
  for (std::size_t i = 0; i < count; ++i) out[i] *= view.tensor_scale;
}

}  // namespace

void dequantize_row(const WeightView& view, std::int64_t row, float* out) {
  if (has_planes(view.format)) {
    dequantize_planes(view, row, out);
    return;
  }
  const BlockShape shape = block_shape(view.format);
  const std::int64_t row_bytes = view.row_bytes();
  CHECK(row >= 0 && row < view.rows && view.cols % shape.columns == 0);
  CHECK((row + 1) * row_bytes <= static_cast<std::int64_t>(view.data.size()));
  const Byte* block = reinterpret_cast<const Byte*>(view.data.data()) + row * row_bytes;
  if (shape.columns == 1) return plain_row(view, block, out);
  const BlockFunction dequantize = block_function(view.format);
  for (std::int64_t col = 0; col < view.cols; col += shape.columns) {
    dequantize(block, out + col);
    block += shape.bytes;
  }
  if (view.tensor_scale == 1.0F) return;
  for (std::int64_t col = 0; col < view.cols; ++col) out[col] *= view.tensor_scale;
}

}  // namespace kun
