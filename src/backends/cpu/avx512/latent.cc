// Gathering the entries of a latent cache, and weighted sums, for AVX-512.
#include <immintrin.h>

#include "backends/cpu/avx512/parts.h"

namespace kun {
namespace {

void add_scaled(float weight, const float* in, float* out, std::int64_t size) {
  const __m512 factor = _mm512_set1_ps(weight);
  for (std::int64_t i = 0; i < size; i += 16) {
    const std::int64_t left = size - i;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFFU : (1U << left) - 1U);
    const __m512 sum = _mm512_fmadd_ps(factor, _mm512_maskz_loadu_ps(mask, in + i),
                                       _mm512_maskz_loadu_ps(mask, out + i));
    _mm512_mask_storeu_ps(out + i, mask, sum);
  }
}

// 16 rows of 16 words become 16 columns; words past `count` are left alone.
void transpose_16x16(const std::byte* const* rows, int first_word, int count, std::byte* out) {
  const auto mask = static_cast<__mmask16>(count >= 16 ? 0xFFFFU : (1U << count) - 1U);
  __m512i r[16];
  __m512i t[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_maskz_loadu_epi32(mask, rows[i] + first_word * 4);
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  // r[4q + k]: in each lane of 4 words, word 4 * lane + k of rows 4q..4q+3.
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int k = 0; k < 4; ++k) {
    // Lanes 0, 2 and lanes 1, 3 of rows 0..7, then of rows 8..15.
    const __m512i low_even = _mm512_shuffle_i32x4(r[k], r[4 + k], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(r[k], r[4 + k], 0xDD);
    const __m512i high_even = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0x88);
    const __m512i high_odd = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0xDD);
    t[k] = _mm512_shuffle_i32x4(low_even, high_even, 0x88);
    t[8 + k] = _mm512_shuffle_i32x4(low_even, high_even, 0xDD);
    t[4 + k] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    t[12 + k] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xDD);
  }
  for (int i = 0; i < 16 && i < count; ++i) {
    _mm512_storeu_si512(out + i * kGroupPositions * 4, t[i]);
  }
}

void gather_keys(const std::byte* const* rows, int words, std::byte* out) {
  for (int first = 0; first < words; first += 16) {
    transpose_16x16(rows, first, words - first, out + first * kGroupPositions * 4);
  }
}

void gather_values(const std::byte* const* rows, int width, std::int64_t stride, std::byte* out) {
  for (int pair = 0; pair < kGroupPositions / 2; ++pair) {
    const std::byte* even = rows[2 * pair];
    const std::byte* odd = rows[2 * pair + 1];
    std::byte* to = out + pair * stride * 4;
    for (int i = 0; i < width; i += 16) {
      const int left = width - i;
      const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFFU : (1U << left) - 1U);
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, even + i * 2));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, odd + i * 2));
      _mm512_mask_storeu_epi32(to + i * 4, mask, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
  }
}

}  // namespace

void add_avx512_latent(CpuKernels* table) {
  table->add_scaled = add_scaled;
  table->gather_keys = gather_keys;
  table->gather_values = gather_values;
}

}  // namespace kun
