// Row operations for AVX-512, and the table itself.
#include "backends/cpu/avx512/exp.h"
#include "backends/cpu/avx512/parts.h"

namespace kun {
namespace {

__mmask16 mask_of(std::int64_t left) {
  return static_cast<__mmask16>(left >= 16 ? 0xFFFFU : (1U << left) - 1U);
}

// Squares are summed in double: a row of large values must not overflow.
void rms_norm(const float* in, const float* weight, float epsilon, float* out, std::int64_t size) {
  __m512d even = _mm512_setzero_pd();
  __m512d odd = _mm512_setzero_pd();
  for (std::int64_t i = 0; i < size; i += 16) {
    const __m512 x = _mm512_maskz_loadu_ps(mask_of(size - i), in + i);
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    even = _mm512_fmadd_pd(low, low, even);
    odd = _mm512_fmadd_pd(high, high, odd);
  }
  const double mean = _mm512_reduce_add_pd(_mm512_add_pd(even, odd)) / static_cast<double>(size);
  const __m128d root = _mm_sqrt_pd(_mm_set1_pd(mean + static_cast<double>(epsilon)));
  const __m512 scale = _mm512_set1_ps(static_cast<float>(1.0 / _mm_cvtsd_f64(root)));
  for (std::int64_t i = 0; i < size; i += 16) {
    const __mmask16 mask = mask_of(size - i);
    const __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, in + i), scale);
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(x, _mm512_maskz_loadu_ps(mask, weight + i)));
  }
}

void rope_half(float* head, std::int64_t head_stride, int heads, int dim, const float* cos_sin) {
  const __m512i evens =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
  const int half = dim / 2;
  for (int i = 0; i < half; i += 16) {
    const int pairs = half - i;
    const __mmask16 mask = mask_of(pairs);
    const __m512 first = _mm512_maskz_loadu_ps(mask_of(2 * pairs), cos_sin + 2 * i);
    const __m512 second =
        _mm512_maskz_loadu_ps(mask_of(pairs > 8 ? 2 * pairs - 16 : 0), cos_sin + 2 * i + 16);
    const __m512 cos = _mm512_permutex2var_ps(first, evens, second);
    const __m512 sin = _mm512_permutex2var_ps(first, odds, second);
    for (int h = 0; h < heads; ++h) {
      float* x = head + h * head_stride + i;
      const __m512 a = _mm512_maskz_loadu_ps(mask, x);
      const __m512 b = _mm512_maskz_loadu_ps(mask, x + half);
      _mm512_mask_storeu_ps(x, mask, _mm512_fmsub_ps(a, cos, _mm512_mul_ps(b, sin)));
      _mm512_mask_storeu_ps(x + half, mask, _mm512_fmadd_ps(b, cos, _mm512_mul_ps(a, sin)));
    }
  }
}

void rope_interleaved(float* head, std::int64_t head_stride, int heads, int dim,
                      const float* cos_sin) {
  for (int i = 0; i < dim; i += 16) {
    const __mmask16 mask = mask_of(dim - i);
    const __m512 both = _mm512_maskz_loadu_ps(mask, cos_sin + i);
    const __m512 cos = _mm512_moveldup_ps(both);
    const __m512 sin = _mm512_movehdup_ps(both);
    for (int h = 0; h < heads; ++h) {
      float* x = head + h * head_stride + i;
      const __m512 pair = _mm512_maskz_loadu_ps(mask, x);
      const __m512 swapped = _mm512_permute_ps(pair, 0xB1);
      _mm512_mask_storeu_ps(x, mask, _mm512_fmaddsub_ps(pair, cos, _mm512_mul_ps(swapped, sin)));
    }
  }
}

void silu_gate(const float* gate, const float* up, float* out, std::int64_t size) {
  const __m512 one = _mm512_set1_ps(1.0F);
  for (std::int64_t i = 0; i < size; i += 16) {
    const __mmask16 mask = mask_of(size - i);
    const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 divisor = _mm512_add_ps(one, exp(_mm512_sub_ps(_mm512_setzero_ps(), g)));
    const __m512 u = _mm512_maskz_loadu_ps(mask, up + i);
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(_mm512_div_ps(g, divisor), u));
  }
}

}  // namespace

void add_avx512_rows(CpuKernels* table) {
  table->rms_norm = rms_norm;
  table->rope_half = rope_half;
  table->rope_interleaved = rope_interleaved;
  table->silu_gate = silu_gate;
}

const CpuKernels& avx512_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = avx2_kernels();
    kernels.name = "avx512";
    add_avx512_linear(&kernels);
    add_avx512_attention(&kernels);
    add_avx512_rows(&kernels);
    add_avx512_latent(&kernels);
    add_avx512_peaks(&kernels);
    return kernels;
  }();
  return table;
}

}  // namespace kun
