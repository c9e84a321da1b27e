// Gathering the entries of a latent cache, and weighted sums, for AVX2.
#include <immintrin.h>

#include "backends/cpu/avx2/parts.h"

namespace kun {
namespace {

void add_scaled(float weight, const float* in, float* out, std::int64_t size) {
  const __m256 factor = _mm256_set1_ps(weight);
  std::int64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    const __m256 sum = _mm256_fmadd_ps(factor, _mm256_loadu_ps(in + i), _mm256_loadu_ps(out + i));
    _mm256_storeu_ps(out + i, sum);
  }
  for (; i < size; ++i) out[i] = __builtin_fmaf(weight, in[i], out[i]);
}

__m256i load(const std::byte* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

void store(std::byte* data, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(data), value);
}

// 8 rows of 8 words become 8 columns: `out` is [word][kGroupPositions].
void transpose_8x8(const std::byte* const* rows, int first_word, std::byte* out) {
  __m256i r[8];
  for (int i = 0; i < 8; ++i) r[i] = load(rows[i] + first_word * 4);
  __m256i pairs[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  __m256i quads[8];  // words 0, 1, 2, 3 (and 4 more) of rows 0..3, then of rows 4..7
  for (int i = 0; i < 8; i += 4) {
    quads[i] = _mm256_unpacklo_epi64(pairs[i], pairs[i + 2]);
    quads[i + 1] = _mm256_unpackhi_epi64(pairs[i], pairs[i + 2]);
    quads[i + 2] = _mm256_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    quads[i + 3] = _mm256_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    store(out + i * kGroupPositions * 4, _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x20));
    store(out + (i + 4) * kGroupPositions * 4,
          _mm256_permute2x128_si256(quads[i], quads[i + 4], 0x31));
  }
}

void gather_keys(const std::byte* const* rows, int words, std::byte* out) {
  int first = 0;
  for (; first + 8 <= words; first += 8) {
    transpose_8x8(rows, first, out + first * kGroupPositions * 4);
    transpose_8x8(rows + 8, first, out + first * kGroupPositions * 4 + 32);
  }
  for (; first < words; ++first) {
    for (int p = 0; p < kGroupPositions; ++p) {
      __builtin_memcpy(out + (first * kGroupPositions + p) * 4, rows[p] + first * 4, 4);
    }
  }
}

void gather_values(const std::byte* const* rows, int width, std::int64_t stride, std::byte* out) {
  for (int pair = 0; pair < kGroupPositions / 2; ++pair) {
    const std::byte* even = rows[2 * pair];
    const std::byte* odd = rows[2 * pair + 1];
    std::byte* to = out + pair * stride * 4;
    int i = 0;
    for (; i + 16 <= width; i += 16) {
      const __m256i a = load(even + i * 2);
      const __m256i b = load(odd + i * 2);
      const __m256i low = _mm256_unpacklo_epi16(a, b);
      const __m256i high = _mm256_unpackhi_epi16(a, b);
      store(to + i * 4, _mm256_permute2x128_si256(low, high, 0x20));
      store(to + i * 4 + 32, _mm256_permute2x128_si256(low, high, 0x31));
    }
    for (; i < width; ++i) {
      __builtin_memcpy(to + i * 4, even + i * 2, 2);
      __builtin_memcpy(to + i * 4 + 2, odd + i * 2, 2);
    }
  }
}

}  // namespace

void add_avx2_latent(CpuKernels* table) {
  table->add_scaled = add_scaled;
  table->gather_keys = gather_keys;
  table->gather_values = gather_values;
}

}  // namespace kun
