// The linear kernels of ARMv8.2 with dot products (the plain Kunpeng 920), and their table.
#include "backends/cpu/neon/grouped.h"

namespace kun {
namespace {

struct DotProduct {
  static constexpr int kVectors = 1;

  static constexpr int slices(int, int tokens) { return tokens == 1 ? 8 : tokens == 2 ? 4 : 2; }

  template <int>
  struct Sum {
    int32x4_t dots;
    static Sum start(int32x4_t value) { return {value}; }
    int32x4_t total() const { return dots; }
  };

  // All tokens of one piece of weights before the next: neighbours do not wait for each other.
  template <int kBits, int kLane, int kTokens>
  [[gnu::always_inline]] static void add_octet(Sum<kBits> (&sums)[kTokens], Octet weights,
                                               const int8x16_t (&x)[kTokens]) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sums[t].dots = vdotq_laneq_s32(sums[t].dots, weights.low, x[t], kLane);
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      sums[t].dots = vdotq_laneq_s32(sums[t].dots, weights.high, x[t], kLane + 1);
    }
  }
};

// Independent chains enough for any latency: 4 rows x 4 columns each, a multiply and an add.
std::int64_t peak_int8(std::int64_t rounds) {
  constexpr int kChains = 16;
  int32x4_t sums[kChains] = {};
  const int8x16_t a = vdupq_n_s8(1);
  int8x16_t b = vdupq_n_s8(2);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sums[c] = vdotq_laneq_s32(sums[c], a, b, 0);
    asm volatile("" : "+w"(b));
  }
  for (int c = 1; c < kChains; ++c) sums[0] = vaddq_s32(sums[0], sums[c]);
  asm volatile("" : : "w"(sums[0]));
  return rounds * kChains * 32;
}

}  // namespace

const CpuKernels& neon_dot_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = neon_kernels();
    kernels.name = "neon_dot";
    add_grouped_formats<BySlices<DotProduct>::Grouped>(&kernels);
    add_neon_dot_int8_attention(&kernels);
    kernels.peak_int8 = peak_int8;
    return kernels;
  }();
  return table;
}

}  // namespace kun
