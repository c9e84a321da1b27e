// The exponential, for the NEON kernels only.
#pragma once

#include <arm_neon.h>

namespace kun {
namespace {

// e^x within 2 units in the last place; 0 below -104, infinity above 89, NaN for NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2, e^r by the polynomial of Cephes' expf (Moshier, netlib).
inline float32x4_t exp(float32x4_t x) {
  x = vmaxq_f32(vdupq_n_f32(-150.0F), vminq_f32(vdupq_n_f32(150.0F), x));  // NaN passes
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 1.44269504F));
  float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0.693359375F));
  r = vfmsq_f32(r, n, vdupq_n_f32(-2.12194440e-4F));
  float32x4_t p = vdupq_n_f32(1.9875691500e-4F);
  p = vfmaq_f32(vdupq_n_f32(1.3981999507e-3F), p, r);
  p = vfmaq_f32(vdupq_n_f32(8.3334519073e-3F), p, r);
  p = vfmaq_f32(vdupq_n_f32(4.1665795894e-2F), p, r);
  p = vfmaq_f32(vdupq_n_f32(1.6666665459e-1F), p, r);
  p = vfmaq_f32(vdupq_n_f32(5.0000001201e-1F), p, r);
  p = vfmaq_f32(vaddq_f32(r, vdupq_n_f32(1.0F)), vmulq_f32(p, r), r);
  // 2^n in two factors, because n may leave the exponent's range.
  const int32x4_t whole = vcvtnq_s32_f32(n);
  const int32x4_t half = vshrq_n_s32(whole, 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
  return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}

}  // namespace
}  // namespace kun
