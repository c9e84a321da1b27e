// exp for the weights of a softmax: branch-free, so that compilers vectorize loops over it, and the
// same on every C library. Relative error below 2e-7 (fast_exp_test.cc).
#pragma once

#include <bit>
#include <cstdint>

namespace kun {

// Weights below exp(kNegligibleExponent) are 0: 2^18 of them together are below the rounding of a
// double sum whose largest term is 1.
constexpr float kNegligibleExponent = -50.0F;

// exp(x) for x <= 0; 0 when x is below kNegligibleExponent, -inf or NaN.
inline float softmax_exp(float x) {
  // x = n ln 2 + r, |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer in the low bits.
  constexpr float kRound = 12582912.0F;
  const std::uint32_t kept =
      -static_cast<std::uint32_t>(x >= kNegligibleExponent);  // all bits or none
  const float safe = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) & kept);
  const float shifted = safe * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (safe - n * 0.693359375F) - n * -2.12194440e-4F;  // ln 2 in two parts (Cephes)
  // Minimax polynomial of Cephes' expf.
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  // The low bits of `shifted` hold n; 2^n is n in the exponent field.
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(shifted) + 127U) << 23;
  const float result = p * std::bit_cast<float>(exponent);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(result) & kept);
}

}  // namespace kun
