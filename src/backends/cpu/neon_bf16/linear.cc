// The linear kernel of ARMv8.6's BF16 matrix products, and their table. A bfmmla multiplies 2 rows
// x 4 columns by 2 tokens; panels hold pairs of columns. bfdot would serve one token as fast, but
// rounds in another order.
#include "backends/cpu/neon/pairs.h"

namespace kun {
namespace {

constexpr int kStepBytes = 2 * kSlices * kSliceBytes;
constexpr int kTaken = 4;  // slices of a pass

bfloat16x8_t as_bf16(uint32x4_t words) {
  return vreinterpretq_bf16_u32(words);
}

std::int64_t column_pairs(std::int64_t cols) {
  return (cols + 1) / 2;
}

// Four columns of one pass; kWhole: there are four, else only the first pair.
template <bool kWhole, int kPairs>
[[gnu::always_inline]] inline void multiply_step(const std::byte* weights, const uint32x4_t* in,
                                                 float32x4_t (&sums)[2 * kTaken][kPairs]) {
#pragma GCC unroll 8
  for (int s = 0; s < kTaken; ++s) {
    const std::byte* data = weights + s * kSliceBytes;
    uint32x4_t high = vdupq_n_u32(0);
    if constexpr (kWhole) high = load_words(data + kStepBytes / 2);
    const RowPairs both = zip_rows(load_words(data), high);
#pragma GCC unroll 4
    for (int p = 0; p < kPairs; ++p) {
      const bfloat16x8_t x = as_bf16(in[p]);
      sums[2 * s][p] = vbfmmlaq_f32(sums[2 * s][p], as_bf16(both.rows[0]), x);
      sums[2 * s + 1][p] = vbfmmlaq_f32(sums[2 * s + 1][p], as_bf16(both.rows[1]), x);
    }
  }
}

// A unit is a step of 4 columns, two column pairs; the last may have only one.
struct Steps {
  using Input = uint32x4_t;  // [even token][2 column pairs], [odd token][2 column pairs]
  static constexpr int kSpanUnits = 32;

  static std::int64_t units(std::int64_t cols) { return (column_pairs(cols) + 1) / 2; }
  static std::int64_t span_bytes(int count) { return std::int64_t{count} * kStepBytes; }
  static constexpr int slices(int) { return kTaken; }

  template <int kTokens>
  [[gnu::always_inline]] static Input input(const LinearTile& tile, std::int64_t unit, int even,
                                            int odd) {
    static constexpr std::uint32_t kNothing[kTokens] = {};
    const auto* low = static_cast<const std::uint32_t*>(tile.activations) + unit * 2 * kTokens;
    const bool half = 2 * unit + 1 == column_pairs(tile.cols);
    const std::uint32_t* high = half ? kNothing : low + kTokens;
    const uint32x4_t result = {low[even], high[even], low[odd], high[odd]};
    return result;
  }

  template <int kPairs>
  [[gnu::always_inline]] static void multiply(const LinearTile& tile, const std::byte* span,
                                              int first, int count, const Input* in,
                                              float32x4_t (*sums)[kPairs]) {
    float32x4_t part[2 * kTaken][kPairs];
#pragma GCC unroll 8
    for (int r = 0; r < 2 * kTaken; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) part[r][p] = sums[r][p];
    }
    const std::byte* panel_end = tile.panel + column_pairs(tile.cols) * (kStepBytes / 2);
    const bool half = span + span_bytes(count) > panel_end;
    const std::byte* weights = span + first * kSliceBytes;
    const Input* end = in + (half ? count - 1 : count) * kPairs;
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
};

template <int kTokens>
using Panel = PairPanel<Steps, kTokens>;

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
