// The linear kernels of ARMv8.6's int8 matrix products, and their table. An smmla multiplies 2 rows
// x 8 columns by 2 tokens: twice the work of a dot product. Panels hold pieces of 4 columns, so two
// neighbouring pieces of 4 rows are zipped into two of 2 rows; tokens are paired once for every
// span of columns and met by all 32 rows. Integer sums are exact, and each is scaled with the
// operations of the dot product table, so both tables give the same bits.
#include "backends/cpu/neon/tile.h"

namespace kun {
namespace {

// Two vectors of 4 rows x 4 columns, as two of 2 rows x 8 columns.
struct RowPairs {
  int8x16_t rows[2];
};
[[gnu::always_inline]] inline RowPairs zip_columns(Nibbles four) {
  const int32x4_t low = vreinterpretq_s32_s8(four.low);
  const int32x4_t high = vreinterpretq_s32_s8(four.high);
  return {
      {vreinterpretq_s8_s32(vzip1q_s32(low, high)), vreinterpretq_s8_s32(vzip2q_s32(low, high))}};
}

inline float32x4_t alternate(float even, float odd) {
  const float32x2_t both = {even, odd};
  return vcombine_f32(both, both);
}
inline int32x4_t alternate(int even, int odd) {
  const int32x2_t both = {even, odd};
  return vcombine_s32(both, both);
}

template <PanelFormat kFormat>
struct Format {
  static constexpr PanelTraits kTraits = panel_traits(kFormat);
  static constexpr int kGroups = kBlockColumns / kTraits.group;
  static constexpr int kOctetsPerGroup = kTraits.group / 8;
  static constexpr int kScaleBytes = scale_bytes(kTraits.scale);

  // One block of two tokens; every vector has the even token in its even lanes.
  struct PairBlock {
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

  // Slices of a pass: its sums, two row pairs a slice, must fit the registers.
  static constexpr int slices(int pairs) { return pairs == 1 ? 4 : 2; }

  template <int kPairs, int kTaken>
  using Dots = int32x4_t[2 * kTaken][kPairs];

  template <int kPairs, int kTaken>
  [[gnu::always_inline]] static void multiply_group(const std::byte* codes, int group,
                                                    const PairBlock* in,
                                                    Dots<kPairs, kTaken>& dots) {
#pragma GCC unroll 8
    for (int r = 0; r < 2 * kTaken; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < kPairs; ++p) dots[r][p] = in[p].start[group];
    }
#pragma GCC unroll 4
    for (int i = group * kOctetsPerGroup; i < (group + 1) * kOctetsPerGroup; ++i) {
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        const std::byte* data = codes + s * kSliceBytes;
        Nibbles four;
        if constexpr (kTraits.bits == 4) {
          four = split_nibbles(data + i * kPanelRows * 4);
        } else {
          four = {load_codes(data + i * kPanelRows * 8),
                  load_codes(data + i * kPanelRows * 8 + kPanelRows * 4)};
        }
        const RowPairs weights = zip_columns(four);
#pragma GCC unroll 2
        for (int r = 0; r < 2; ++r) {
#pragma GCC unroll 4
          for (int p = 0; p < kPairs; ++p) {
            int32x4_t& sum = dots[2 * s + r][p];
            sum = vmmlaq_s32(sum, weights.rows[r], in[p].codes[i]);
          }
        }
      }
    }
  }

  // `sums` are [row pair][token pair], a vector being [row][token].
  template <int kPairs, int kTaken>
  [[gnu::always_inline]] static void run_block(const std::byte* block, int first,
                                               const SuperScales<kFormat> (&super)[kTaken],
                                               const PairBlock* in, float32x4_t (*sums)[kPairs]) {
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

  template <int kPairs>
  static void run_span(const std::byte* block, int blocks, const PairBlock* in,
                       float32x4_t (*sums)[kPairs]) {
    constexpr int kTaken = slices(kPairs);
    constexpr int kHeader = kTraits.scale == ScaleKind::kSuper ? header_bytes(kTraits) : 0;
    for (int first = 0; first < kSlices; first += kTaken) {
      SuperScales<kFormat> super[kTaken];
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) super[s] = SuperScales<kFormat>::load(block, first + s);
      for (int b = 0; b < blocks; ++b) {
        run_block<kPairs, kTaken>(block + kHeader + b * block_bytes(kTraits), first, super,
                                  in + b * kPairs, &sums[2 * first]);
      }
    }
  }
};

// From [row pair][token pair] to [slice][token].
[[gnu::noinline]] void store_pairs(const LinearTile& tile, const float32x4_t* sums, int pairs) {
  for (int slice = 0; slice < kSlices; ++slice) {
    for (int t = 0; t < tile.tokens; ++t) {
      const float32x4_t low = sums[2 * slice * pairs + t / 2];
      const float32x4_t high = sums[(2 * slice + 1) * pairs + t / 2];
      store_slice(tile, slice, t, t % 2 == 0 ? vuzp1q_f32(low, high) : vuzp2q_f32(low, high));
    }
  }
}

struct ByPairs {
  template <PanelFormat kFormat>
  struct Grouped {
    using Own = Format<kFormat>;
    static constexpr PanelTraits kTraits = panel_traits(kFormat);

    template <int kTokens>
    struct Panel {
      static constexpr int kPairs = (kTokens + 1) / 2;

      static void run(const LinearTile& tile) {
        float32x4_t sums[2 * kSlices][kPairs] = {};
        typename Own::PairBlock in[kSuperBlocks * kPairs];
        const auto* tokens = static_cast<const ActivationBlock*>(tile.activations);
        const std::byte* block = tile.panel;
        std::int64_t left = tile.cols / kBlockColumns;
        Prefetcher prefetcher(tile, (left + kSuperBlocks - 1) / kSuperBlocks);
        while (left > 0) {
          const int blocks = left < kSuperBlocks ? static_cast<int>(left) : kSuperBlocks;
          prefetcher.step();
          for (int b = 0; b < blocks; ++b, tokens += kTokens) {
            for (int p = 0; p < kPairs; ++p) {
              // The last of an odd number of tokens is its own partner.
              const int odd = 2 * p + 1 < kTokens ? 2 * p + 1 : 2 * p;
              in[b * kPairs + p].fill(tokens[2 * p], tokens[odd]);
            }
          }
          Own::template run_span<kPairs>(block, blocks, in, sums);
          if constexpr (kTraits.scale == ScaleKind::kSuper) block += header_bytes(kTraits);
          block += blocks * block_bytes(kTraits);
          left -= blocks;
        }
        store_pairs(tile, &sums[0][0], kPairs);
      }
    };
  };
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
    add_grouped_formats<ByPairs>(&kernels);
    kernels.peak_int8 = peak_int8;
    return kernels;
  }();
  return table;
}

}  // namespace kun
