// Row operations for AVX2, and the table itself.
#include "backends/cpu/avx2/exp.h"
#include "backends/cpu/avx2/parts.h"

namespace kun {
namespace {

__m256i mask_of(std::int64_t left) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(left > 8 ? 8 : static_cast<int>(left)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

double sum_lanes(__m256d v) {
  const __m128d pair = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(pair, _mm_unpackhi_pd(pair, pair)));
}

// Squares are summed in double: a row of large values must not overflow.
void rms_norm(const float* in, const float* weight, float epsilon, float* out, std::int64_t size) {
  __m256d even = _mm256_setzero_pd();
  __m256d odd = _mm256_setzero_pd();
  for (std::int64_t i = 0; i < size; i += 8) {
    const __m256 x = _mm256_maskload_ps(in + i, mask_of(size - i));
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    even = _mm256_fmadd_pd(low, low, even);
    odd = _mm256_fmadd_pd(high, high, odd);
  }
  const double mean = sum_lanes(_mm256_add_pd(even, odd)) / static_cast<double>(size);
  const __m128d root = _mm_sqrt_pd(_mm_set1_pd(mean + static_cast<double>(epsilon)));
  const __m256 scale = _mm256_set1_ps(static_cast<float>(1.0 / _mm_cvtsd_f64(root)));
  for (std::int64_t i = 0; i < size; i += 8) {
    const __m256i mask = mask_of(size - i);
    const __m256 x = _mm256_mul_ps(_mm256_maskload_ps(in + i, mask), scale);
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(x, _mm256_maskload_ps(weight + i, mask)));
  }
}

void rope_half(float* head, std::int64_t head_stride, int heads, int dim, const float* cos_sin) {
  const int half = dim / 2;
  for (int i = 0; i < half; i += 8) {
    const int pairs = half - i;
    const __m256i mask = mask_of(pairs);
    // cos and sin alternate; the permutation undoes the halves in which the shuffle works.
    const __m256 first = _mm256_maskload_ps(cos_sin + 2 * i, mask_of(2 * pairs));
    const __m256 second = _mm256_maskload_ps(cos_sin + 2 * i + 8, mask_of(2 * pairs - 8));
    const __m256 even = _mm256_shuffle_ps(first, second, 0x88);
    const __m256 odd = _mm256_shuffle_ps(first, second, 0xDD);
    const __m256 cos = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xD8));
    const __m256 sin = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xD8));
    for (int h = 0; h < heads; ++h) {
      float* x = head + h * head_stride + i;
      const __m256 a = _mm256_maskload_ps(x, mask);
      const __m256 b = _mm256_maskload_ps(x + half, mask);
      _mm256_maskstore_ps(x, mask, _mm256_fmsub_ps(a, cos, _mm256_mul_ps(b, sin)));
      _mm256_maskstore_ps(x + half, mask, _mm256_fmadd_ps(b, cos, _mm256_mul_ps(a, sin)));
    }
  }
}

void rope_interleaved(float* head, std::int64_t head_stride, int heads, int dim,
                      const float* cos_sin) {
  for (int i = 0; i < dim; i += 8) {
    const __m256i mask = mask_of(dim - i);
    const __m256 both = _mm256_maskload_ps(cos_sin + i, mask);
    const __m256 cos = _mm256_moveldup_ps(both);
    const __m256 sin = _mm256_movehdup_ps(both);
    for (int h = 0; h < heads; ++h) {
      float* x = head + h * head_stride + i;
      const __m256 pair = _mm256_maskload_ps(x, mask);
      const __m256 swapped = _mm256_permute_ps(pair, 0xB1);
      _mm256_maskstore_ps(x, mask, _mm256_fmaddsub_ps(pair, cos, _mm256_mul_ps(swapped, sin)));
    }
  }
}

void silu_gate(const float* gate, const float* up, float* out, std::int64_t size) {
  const __m256 one = _mm256_set1_ps(1.0F);
  for (std::int64_t i = 0; i < size; i += 8) {
    const __m256i mask = mask_of(size - i);
    const __m256 g = _mm256_maskload_ps(gate + i, mask);
    const __m256 divisor = _mm256_add_ps(one, exp(_mm256_sub_ps(_mm256_setzero_ps(), g)));
    const __m256 u = _mm256_maskload_ps(up + i, mask);
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(_mm256_div_ps(g, divisor), u));
  }
}

}  // namespace

void add_avx2_rows(CpuKernels* table) {
  table->rms_norm = rms_norm;
  table->rope_half = rope_half;
  table->rope_interleaved = rope_interleaved;
  table->silu_gate = silu_gate;
}

const CpuKernels& avx2_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = reference_kernels();
    kernels.name = "avx2";
    add_avx2_linear(&kernels);
    add_avx2_attention(&kernels);
    add_avx2_rows(&kernels);
    add_avx2_latent(&kernels);
    add_avx2_peaks(&kernels);
    return kernels;
  }();
  return table;
}

}  // namespace kun
