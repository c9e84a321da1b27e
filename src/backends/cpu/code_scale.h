// What the kernels of all instruction sets do between searching floats for the largest magnitude
// and rounding them to codes: the same operations, hence the same bits. In an unnamed namespace, so
// that every kernel file has its own copy (see kernels.h); the reference has its own words for it.
#pragma once

#include "backends/cpu/kernels.h"

namespace kun {
namespace {

// A float's magnitude as an integer orders like the float, with NaN above infinity.
constexpr std::uint32_t kInfinityBits = 0x7F800000U;

struct CodeScale {
  float scale;    // NaN when an input is not finite
  float inverse;  // 0 when all codes are
  bool is_zero;   // all codes are, whatever the inputs times `inverse` may be
};

// `largest_bits`: of the largest magnitude.
inline CodeScale code_scale(std::uint32_t largest_bits) {
  if (largest_bits >= kInfinityBits) return {__builtin_nanf(""), 0.0F, true};
  float largest = 0.0F;
  __builtin_memcpy(&largest, &largest_bits, sizeof(largest));
  if (largest < kActivationFloor) return {0.0F, 0.0F, true};
  return {largest * (1.0F / 127.0F), 127.0F / largest, false};
}

// Writes what follows the codes of a block; `sums` are those of its halves' codes.
inline void store_factors(ActivationBlock* out, float scale, const int (&sums)[2]) {
  out->scale = scale;
  for (int i = 0; i < 2; ++i) {
    out->negated_half_sum[i] = -sums[i];
    out->half_sum[i] = scale * static_cast<float>(sums[i]);
  }
  out->negated_sum = -(sums[0] + sums[1]);
  out->sum = scale * static_cast<float>(sums[0] + sums[1]);
}

}  // namespace
}  // namespace kun
