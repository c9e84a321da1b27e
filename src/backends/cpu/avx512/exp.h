// The exponential, for the AVX-512 kernels only.
#pragma once

#include <immintrin.h>

namespace kun {
namespace {

// e^x within 2 units in the last place; 0 below -104, infinity above 89, NaN for NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2, e^r by the polynomial of Cephes' expf (Moshier, netlib).
inline __m512 exp(__m512 x) {
  // min and max return their second operand when either is NaN.
  x = _mm512_max_ps(_mm512_set1_ps(-150.0F), _mm512_min_ps(_mm512_set1_ps(150.0F), x));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504F)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1F));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0F)));
  return _mm512_scalef_ps(p, n);
}

}  // namespace
}  // namespace kun
