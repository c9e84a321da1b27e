// The linear kernel of ARMv8.6's BF16 matrix products, and their table. A bfmmla multiplies 2 rows
// x 4 columns by 2 tokens. Panels hold pairs of columns, so two neighbouring pairs of 4 rows are
// zipped into two of 2 rows. One token takes the same instruction as many: its bits must not depend
// on its company, and bfdot rounds in another order.
#include "backends/cpu/neon/tile.h"

namespace kun {
namespace {

constexpr std::int64_t kSpanSteps = 32;  // of 4 columns
constexpr int kStepBytes = 2 * kSlices * kSliceBytes;
constexpr int kTaken = 4;  // slices of a pass

bfloat16x8_t as_bf16(uint32x4_t words) {
  return vreinterpretq_bf16_u32(words);
}

// Two column pairs of two tokens: [even token][2 pairs], [odd token][2 pairs].
uint32x4_t pair_tokens(const std::uint32_t* low, const std::uint32_t* high, int even, int odd) {
  const uint32x4_t result = {low[even], high[even], low[odd], high[odd]};
  return result;
}

// Four columns of one pass; kWhole: there are four, else only the first pair.
template <bool kWhole, int kPairs>
[[gnu::always_inline]] inline void multiply_step(const std::byte* weights, const uint32x4_t* in,
                                                 float32x4_t (&sums)[2 * kTaken][kPairs]) {
#pragma GCC unroll 8
  for (int s = 0; s < kTaken; ++s) {
    const std::byte* data = weights + s * kSliceBytes;
    const uint32x4_t low = load_words(data);
    uint32x4_t high = vdupq_n_u32(0);
    if constexpr (kWhole) high = load_words(data + kStepBytes / 2);
    const bfloat16x8_t upper = as_bf16(vzip1q_u32(low, high));
    const bfloat16x8_t lower = as_bf16(vzip2q_u32(low, high));
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const bfloat16x8_t x = as_bf16(in[p]);
      sums[2 * s][p] = vbfmmlaq_f32(sums[2 * s][p], upper, x);
      sums[2 * s + 1][p] = vbfmmlaq_f32(sums[2 * s + 1][p], lower, x);
    }
  }
}

template <int kPairs>
[[gnu::always_inline]] inline void multiply_steps(const std::byte* weights, int steps, bool half,
                                                  const uint32x4_t* in,
                                                  float32x4_t (*sums)[kPairs]) {
  float32x4_t part[2 * kTaken][kPairs];
#pragma GCC unroll 8
  for (int r = 0; r < 2 * kTaken; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) part[r][p] = sums[r][p];
  }
  const uint32x4_t* end = in + (half ? steps - 1 : steps) * kPairs;
  for (; in != end; in += kPairs, weights += kStepBytes) {
    multiply_step<true, kPairs>(weights, in, part);
  }
  if (half) multiply_step<false, kPairs>(weights, in, part);
#pragma GCC unroll 8
  for (int r = 0; r < 2 * kTaken; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) sums[r][p] = part[r][p];
  }
}

[[gnu::noinline]] void store_pairs(const LinearTile& tile, const float32x4_t* sums, int pairs) {
  for (int slice = 0; slice < kSlices; ++slice) {
    for (int t = 0; t < tile.tokens; ++t) {
      const float32x4_t low = sums[2 * slice * pairs + t / 2];
      const float32x4_t high = sums[(2 * slice + 1) * pairs + t / 2];
      store_slice(tile, slice, t, t % 2 == 0 ? vuzp1q_f32(low, high) : vuzp2q_f32(low, high));
    }
  }
}

template <int kTokens>
struct Panel {
  static constexpr int kPairs = (kTokens + 1) / 2;

  static void run(const LinearTile& tile) {
    float32x4_t sums[2 * kSlices][kPairs] = {};
    uint32x4_t in[kSpanSteps * kPairs];
    static constexpr std::uint32_t kNothing[kTokens] = {};
    const auto* words = static_cast<const std::uint32_t*>(tile.activations);
    const std::int64_t column_pairs = (tile.cols + 1) / 2;
    const std::int64_t steps = (column_pairs + 1) / 2;
    Prefetcher prefetcher(tile, (steps + kSpanSteps - 1) / kSpanSteps);
    for (std::int64_t step = 0; step < steps; step += kSpanSteps) {
      prefetcher.step();
      const bool last = steps - step <= kSpanSteps;
      const int count = static_cast<int>(last ? steps - step : kSpanSteps);
      const bool half = last && column_pairs % 2 != 0;
      for (int i = 0; i < count; ++i) {
        const std::uint32_t* low = words + (step + i) * 2 * kTokens;
        const std::uint32_t* high = half && i + 1 == count ? kNothing : low + kTokens;
        for (int p = 0; p < kPairs; ++p) {
          const int odd = 2 * p + 1 < kTokens ? 2 * p + 1 : 2 * p;
          in[i * kPairs + p] = pair_tokens(low, high, 2 * p, odd);
        }
      }
      for (int first = 0; first < kSlices; first += kTaken) {
        multiply_steps<kPairs>(tile.panel + step * kStepBytes + first * kSliceBytes, count, half,
                               in, &sums[2 * first]);
      }
    }
    store_pairs(tile, &sums[0][0], kPairs);
  }
};

void to_bf16_pairs(const float* in, std::int64_t cols, std::uint32_t* out, std::int64_t stride) {
  std::int64_t c = 0;
  for (; c + 8 <= cols; c += 8) {
    const bfloat16x8_t low = vcvtq_low_bf16_f32(vld1q_f32(in + c));
    const uint32x4_t four = vreinterpretq_u32_bf16(vcvtq_high_bf16_f32(low, vld1q_f32(in + c + 4)));
    std::uint32_t pairs[4];
    vst1q_u32(pairs, four);
    for (int p = 0; p < 4; ++p) out[(c / 2 + p) * stride] = pairs[p];
  }
  for (; c < cols; c += 2) {
    const float32x4_t two = {in[c], c + 1 < cols ? in[c + 1] : 0.0F, 0.0F, 0.0F};
    out[c / 2 * stride] = vgetq_lane_u32(vreinterpretq_u32_bf16(vcvtq_low_bf16_f32(two)), 0);
  }
}

// 2 rows x 4 columns x 2 tokens, a multiply and an add each.
std::int64_t peak_bf16(std::int64_t rounds) {
  constexpr int kChains = 16;
  float32x4_t sums[kChains] = {};
  uint32x4_t a = vdupq_n_u32(0x3F803F80U);
  uint32x4_t b = a;
  asm volatile("" : "+w"(a), "+w"(b));  // GCC 12 takes BF16 constants for half precision
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      sums[c] = vbfmmlaq_f32(sums[c], as_bf16(a), as_bf16(b));
    }
    asm volatile("" : "+w"(b));
  }
  for (int c = 1; c < kChains; ++c) sums[0] = vaddq_f32(sums[0], sums[c]);
  asm volatile("" : : "w"(sums[0]));
  return rounds * kChains * 32;
}

}  // namespace

const CpuKernels& neon_bf16_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = neon_i8mm_kernels();
    kernels.name = "neon_bf16";
    kernels.rounds_to_bf16 = true;
    kernels.linear[static_cast<int>(PanelFormat::kBF16)] = dispatch<Panel>;
    kernels.to_bf16_pairs = to_bf16_pairs;
    kernels.peak_bf16 = peak_bf16;
    add_neon_bf16_attention(&kernels);
    return kernels;
  }();
  return table;
}

}  // namespace kun
