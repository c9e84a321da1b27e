// The linear kernels of ARMv8.6's int8 matrix products, and their table. An smmla multiplies 2 rows
// x 8 columns by 2 tokens: twice the work of a dot product; panels hold pieces of 4 columns.
// Integer sums are exact, and each is scaled with the operations of the dot product table, so both
// tables give the same bits.
#include "backends/cpu/neon/pairs.h"

namespace kun {
namespace {

inline float32x4_t alternate(float even, float odd) {
  const float32x2_t both = {even, odd};
  return vcombine_f32(both, both);
}
inline int32x4_t alternate(int even, int odd) {
  const int32x2_t both = {even, odd};
  return vcombine_s32(both, both);
}

// A unit is a block of 32 columns.
template <PanelFormat kFormat>
struct Blocks {
  static constexpr PanelTraits kTraits = panel_traits(kFormat);
  static constexpr int kGroups = kBlockColumns / kTraits.group;
  static constexpr int kOctetsPerGroup = kTraits.group / 8;
  static constexpr int kScaleBytes = scale_bytes(kTraits.scale);
  static constexpr int kSpanUnits = kSuperBlocks;

  // One block of two tokens; every vector has the even token in its even lanes.
  struct Input {
    int8x16_t codes[kBlockColumns / 8];  // 8 columns of one token, then of the other
    int32x4_t start[kGroups];
    float32x4_t sum[kGroups];
    float32x4_t scale;

    void fill(const ActivationBlock& even, const ActivationBlock& odd) {
      for (int i = 0; i < kBlockColumns / 8; ++i) {
        codes[i] = vcombine_s8(vld1_s8(even.codes + 8 * i), vld1_s8(odd.codes + 8 * i));
      }
      constexpr int kOffset = code_offset(kTraits);
      for (int g = 0; g < kGroups; ++g) {
        const bool whole = kTraits.group == 32;
        start[g] = alternate(kOffset * (whole ? even.negated_sum : even.negated_half_sum[g]),
                             kOffset * (whole ? odd.negated_sum : odd.negated_half_sum[g]));
        sum[g] = alternate(whole ? even.sum : even.half_sum[g], whole ? odd.sum : odd.half_sum[g]);
      }
      scale = alternate(even.scale, odd.scale);
    }
  };

  static std::int64_t units(std::int64_t cols) { return cols / kBlockColumns; }
  static std::int64_t span_bytes(int count) {
    return header_bytes(kTraits) + std::int64_t{count} * block_bytes(kTraits);
  }
  static constexpr int slices(int pairs) { return pairs == 1 ? 4 : 2; }

  template <int kPairs, int kTaken>
  using Dots = int32x4_t[2 * kTaken][kPairs];

  template <int kPairs, int kTaken, int kOctet>
  [[gnu::always_inline]] static void multiply_octet(const std::byte* codes, int group,
                                                    const Input* in, Dots<kPairs, kTaken>& dots) {
#pragma GCC unroll 8
    for (int s = 0; s < kTaken; ++s) {
      const Octet octet = load_octet<kFormat, kOctet>(codes + s * kSliceBytes, group);
      const RowPairs weights =
          zip_rows(vreinterpretq_u32_s8(octet.low), vreinterpretq_u32_s8(octet.high));
#pragma GCC unroll 2
      for (int r = 0; r < 2; ++r) {
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          int32x4_t& sum = dots[2 * s + r][p];
          sum = vmmlaq_s32(sum, vreinterpretq_s8_u32(weights.rows[r]),
                           in[p].codes[group * kOctetsPerGroup + kOctet]);
        }
      }
    }
  }

  template <int kPairs, int kTaken>
  [[gnu::always_inline]] static void multiply_group(const std::byte* codes, int group,
                                                    const Input* in, Dots<kPairs, kTaken>& dots) {
#pragma GCC unroll 8
    for (int r = 0; r < 2 * kTaken; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) dots[r][p] = in[p].start[group];
    }
    multiply_octet<kPairs, kTaken, 0>(codes, group, in, dots);
    multiply_octet<kPairs, kTaken, 1>(codes, group, in, dots);
    if constexpr (kOctetsPerGroup == 4) {
      multiply_octet<kPairs, kTaken, 2>(codes, group, in, dots);
      multiply_octet<kPairs, kTaken, 3>(codes, group, in, dots);
    }
  }

  // `sums` are [row pair][token pair], a vector being [row][token].
  template <int kPairs, int kTaken>
  [[gnu::always_inline]] static void run_block(const std::byte* block, int first,
                                               const SuperScales<kFormat> (&super)[kTaken],
                                               const Input* in, float32x4_t (*sums)[kPairs]) {
    const std::byte* scales = block + code_bytes(kTraits) + 4 * first * kScaleBytes;
    const std::byte* mins = scales + scale_plane_bytes(kTraits);
    for (int g = 0; g < kGroups; ++g) {
      Dots<kPairs, kTaken> dots;
      multiply_group<kPairs, kTaken>(block + first * kSliceBytes, g, in, dots);
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        const int at = (g * kPanelRows + 4 * s) * kScaleBytes;
        const float32x4_t scale = load_scales<kTraits.scale>(scales + at, super[s].scale);
        float32x4_t min = {};
        if constexpr (kTraits.has_min) min = load_scales<kTraits.scale>(mins + at, super[s].min);
#pragma GCC unroll 2
        for (int r = 0; r < 2; ++r) {
          const float32x4_t pair_scale =
              r == 0 ? vzip1q_f32(scale, scale) : vzip2q_f32(scale, scale);
          const float32x4_t pair_min = r == 0 ? vzip1q_f32(min, min) : vzip2q_f32(min, min);
#pragma GCC unroll 4
          for (int p = 0; p < kPairs; ++p) {
            float32x4_t& sum = sums[2 * s + r][p];
            sum = vfmaq_f32(sum, vcvtq_f32_s32(dots[2 * s + r][p]),
                            vmulq_f32(pair_scale, in[p].scale));
            if constexpr (kTraits.has_min) sum = vfmaq_f32(sum, pair_min, in[p].sum[g]);
          }
        }
      }
    }
  }

  template <int kTokens>
  [[gnu::always_inline]] static Input input(const LinearTile& tile, std::int64_t unit, int even,
                                            int odd) {
    const auto* tokens = static_cast<const ActivationBlock*>(tile.activations) + unit * kTokens;
    Input result;
    result.fill(tokens[even], tokens[odd]);
    return result;
  }

  template <int kPairs>
  [[gnu::always_inline]] static void multiply(const LinearTile&, const std::byte* span, int first,
                                              int count, const Input* in,
                                              float32x4_t (*sums)[kPairs]) {
    constexpr int kTaken = slices(kPairs);
    SuperScales<kFormat> super[kTaken];
#pragma GCC unroll 8
    for (int s = 0; s < kTaken; ++s) super[s] = SuperScales<kFormat>::load(span, first + s);
    span += header_bytes(kTraits);
    for (int b = 0; b < count; ++b) {
      run_block<kPairs, kTaken>(span + b * block_bytes(kTraits), first, super, in + b * kPairs,
                                sums);
    }
  }
};

template <PanelFormat kFormat>
struct Grouped {
  template <int kTokens>
  using Panel = PairPanel<Blocks<kFormat>, kTokens>;
};

// 2 rows x 8 columns x 2 tokens, a multiply and an add each.
std::int64_t peak_int8(std::int64_t rounds) {
  constexpr int kChains = 16;
  int32x4_t sums[kChains] = {};
  const int8x16_t a = vdupq_n_s8(1);
  int8x16_t b = vdupq_n_s8(2);
  for (std::int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sums[c] = vmmlaq_s32(sums[c], a, b);
    asm volatile("" : "+w"(b));
  }
  for (int c = 1; c < kChains; ++c) sums[0] = vaddq_s32(sums[0], sums[c]);
  asm volatile("" : : "w"(sums[0]));
  return rounds * kChains * 64;
}

}  // namespace

const CpuKernels& neon_i8mm_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = neon_dot_kernels();
    kernels.name = "neon_i8mm";
    add_grouped_formats<Grouped>(&kernels);
    kernels.peak_int8 = peak_int8;
    return kernels;
  }();
  return table;
}

}  // namespace kun
