// Q2_K to Q6_K: super-blocks of 256 whose small integer scales multiply an F16. Layouts as in
// ggml's ggml-common.h (block_q2_K ...) and ggml-quants.c (dequantize_row_*).
#include "backends/cpu/block_bytes.h"
#include "backends/cpu/unpack.h"
#include "base/check.h"

namespace kun {
namespace {

std::int8_t narrow(int value) {
  return static_cast<std::int8_t>(value);
}

// The 6-bit scale (and min) pair `j` of Q4_K and Q5_K, from their 12 bytes.
void six_bit_pair(const std::byte* s, int j, UnpackedBlock* out) {
  const auto at = [s](int i) { return static_cast<int>(s[i]); };
  const int scale = j < 4 ? at(j) & 63 : (at(j + 4) & 15) | (at(j - 4) >> 6) << 4;
  const int min = j < 4 ? at(j + 4) & 63 : at(j + 4) >> 4 | (at(j) >> 6) << 4;
  out->scale_steps[0] = narrow(scale);
  out->min_steps[0] = narrow(-min);
}

// d, dmin, scales[12], (fifth bits[32],) nibbles[128]; block j is half of chunk j / 2.
void unpack_q4_q5(const std::byte* data, int j, bool five_bits, UnpackedBlock* out) {
  unpack_q4_k_scales(data, j, out);
  const std::byte* fifth = data + 16;
  const std::byte* bytes = data + (five_bits ? 48 : 16) + j / 2 * 32;
  for (int i = 0; i < kBlockColumns; ++i) {
    const int code = j % 2 == 0 ? low_nibble(bytes[i]) : high_nibble(bytes[i]);
    const int bit = five_bits ? static_cast<int>(fifth[i]) >> j & 1 : 0;
    out->codes[i] = narrow(code + 16 * bit);
  }
}

// ql[128], qh[64], scales[16], d; block j is quarter j % 4 of half j / 4.
void unpack_q6(const std::byte* data, int j, UnpackedBlock* out) {
  const int half = j / 4;
  const int quarter = j % 4;
  const std::byte* low = data + 64 * half + 32 * (quarter % 2);
  const std::byte* high = data + 128 + 32 * half;
  for (int i = 0; i < kBlockColumns; ++i) {
    const int four = quarter < 2 ? low_nibble(low[i]) : high_nibble(low[i]);
    const int two = static_cast<int>(high[i]) >> (2 * quarter) & 3;
    out->codes[i] = narrow((four | two << 4) - 32);
  }
  for (int g = 0; g < 2; ++g) {
    out->scale_steps[g] = static_cast<std::int8_t>(data[192 + 8 * half + 2 * quarter + g]);
  }
  out->super_scale_f16 = u16_at(data + 208);
}

// scales[16], codes[64], d, dmin; block j takes bits 2 (j % 4) of the bytes of half j / 4.
void unpack_q2(const std::byte* data, int j, UnpackedBlock* out) {
  const std::byte* bytes = data + 16 + j / 4 * 32;
  for (int i = 0; i < kBlockColumns; ++i) {
    out->codes[i] = narrow(static_cast<int>(bytes[i]) >> (2 * (j % 4)) & 3);
  }
  for (int g = 0; g < 2; ++g) {
    out->scale_steps[g] = narrow(low_nibble(data[2 * j + g]));
    out->min_steps[g] = narrow(-high_nibble(data[2 * j + g]));
  }
  out->super_scale_f16 = u16_at(data + 80);
  out->super_min_f16 = u16_at(data + 82);
}

// The k-th of Q3_K's 16 six-bit scales, less 32.
int q3_scale(const std::byte* s, int k) {
  const int low = k < 8 ? low_nibble(s[k]) : high_nibble(s[k - 8]);
  const int high = static_cast<int>(s[8 + k % 4]) >> (2 * (k / 4)) & 3;
  return (low | high << 4) - 32;
}

// high bits[32], codes[64], scales[12], d; bit j of the high bits belongs to block j.
void unpack_q3(const std::byte* data, int j, UnpackedBlock* out) {
  const std::byte* bytes = data + 32 + j / 4 * 32;
  for (int i = 0; i < kBlockColumns; ++i) {
    const int code = static_cast<int>(bytes[i]) >> (2 * (j % 4)) & 3;
    const bool high = (static_cast<int>(data[i]) >> j & 1) != 0;
    out->codes[i] = narrow(high ? code : code - 4);
  }
  for (int g = 0; g < 2; ++g) out->scale_steps[g] = narrow(q3_scale(data + 96, 2 * j + g));
  out->super_scale_f16 = u16_at(data + 108);
}

}  // namespace

// Q5_K begins the same way.
void unpack_q4_k_scales(const std::byte* data, int j, UnpackedBlock* out) {
  out->super_scale_f16 = u16_at(data);
  out->super_min_f16 = u16_at(data + 2);
  six_bit_pair(data + 4, j, out);
}

void unpack_k_quant(WeightFormat format, const std::byte* row, std::int64_t block,
                    UnpackedBlock* out) {
  const std::byte* data = row + block / kSuperBlocks * block_shape(format).bytes;
  const int j = static_cast<int>(block % kSuperBlocks);
  switch (format) {
    case WeightFormat::kQ2_K: unpack_q2(data, j, out); return;
    case WeightFormat::kQ3_K: unpack_q3(data, j, out); return;
    case WeightFormat::kQ4_K: unpack_q4_q5(data, j, false, out); return;
    case WeightFormat::kQ5_K: unpack_q4_q5(data, j, true, out); return;
    case WeightFormat::kQ6_K: unpack_q6(data, j, out); return;
    default: CHECK(false);
  }
}

}  // namespace kun
