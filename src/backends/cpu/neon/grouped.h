// Linear kernels over grouped panels for tables that multiply 4 rows x 4 columns by one token:
// ARMv8.0 widens products to 16 bits, ARMv8.2 has dot products. `Dot` says how. Per 4 rows, token
// and group of 32 columns there is, beside the products, one start value, one conversion, one
// multiply and one fused multiply-add; unpacking and scales are shared by the tokens.
#pragma once

#include "backends/cpu/neon/tile.h"

namespace kun {
namespace {

// The slices from `first` of one block. kInRegisters: `sums` are registers, else memory.
template <class Dot, PanelFormat kFormat, int kTaken, int kTokens>
struct Block {
  static constexpr PanelTraits kTraits = panel_traits(kFormat);
  static constexpr int kScaleBytes = scale_bytes(kTraits.scale);
  using Sums = typename Dot::template Sum<kTraits.bits>;

  // Octet kOctet of a group, which is half of the 16 columns in `x`.
  template <int kOctet>
  [[gnu::always_inline]] static void multiply_octet(const std::byte* codes, int group,
                                                    const int8x16_t (&x)[kTokens],
                                                    Sums (&dots)[kTaken][kTokens]) {
#pragma GCC unroll 8
    for (int s = 0; s < kTaken; ++s) {
      const Octet weights = load_octet<kFormat, kOctet>(codes + s * kSliceBytes, group);
      Dot::template add_octet<kTraits.bits, 2 * (kOctet % 2)>(dots[s], weights, x);
    }
  }

  // 16 columns of a group, from octet kOctet.
  template <int kOctet>
  [[gnu::always_inline]] static void multiply_columns(const std::byte* codes, int group,
                                                      const ActivationBlock* in,
                                                      Sums (&dots)[kTaken][kTokens]) {
    int8x16_t x[kTokens];
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      x[t] = vld1q_s8(in[t].codes + group * kTraits.group + 8 * kOctet);
    }
    multiply_octet<kOctet>(codes, group, x, dots);
    multiply_octet<kOctet + 1>(codes, group, x, dots);
  }

  [[gnu::always_inline]] static void multiply_group(const std::byte* codes, int group,
                                                    const ActivationBlock* in,
                                                    Sums (&dots)[kTaken][kTokens]) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      int sum = kTraits.group == 32 ? in[t].negated_sum : in[t].negated_half_sum[group];
      sum *= code_offset(kTraits);
      asm("" : "+r"(sum));  // multiplied where it costs no vector instruction
      const int32x4_t start = vdupq_n_s32(sum);
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) dots[s][t] = Sums::start(start);
    }
    multiply_columns<0>(codes, group, in, dots);
    if constexpr (kTraits.group == 32) multiply_columns<2>(codes, group, in, dots);
  }

  [[gnu::always_inline]] static void run(const std::byte* block, int first,
                                         const SuperScales<kFormat> (&super)[kTaken],
                                         const ActivationBlock* in, float32x4_t (*sums)[kTokens]) {
    const std::byte* codes = block + first * kSliceBytes;
    const std::byte* scales = block + code_bytes(kTraits) + 4 * first * kScaleBytes;
    const std::byte* mins = scales + scale_plane_bytes(kTraits);
    for (int g = 0; g < kBlockColumns / kTraits.group; ++g) {
      Sums dots[kTaken][kTokens];
      multiply_group(codes, g, in, dots);
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        const int at = (g * kPanelRows + 4 * s) * kScaleBytes;
        const float32x4_t scale = load_scales<kTraits.scale>(scales + at, super[s].scale);
        float32x4_t min = {};
        if constexpr (kTraits.has_min) {
          min = load_scales<kTraits.scale>(mins + at, super[s].min);
        }
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) {
          const float32x4_t joint = vmulq_n_f32(scale, in[t].scale);
          sums[s][t] = vfmaq_f32(sums[s][t], vcvtq_f32_s32(dots[s][t].total()), joint);
          if constexpr (kTraits.has_min) {
            const float sum = kTraits.group == 32 ? in[t].sum : in[t].half_sum[g];
            sums[s][t] = vfmaq_n_f32(sums[s][t], min, sum);
          }
        }
      }
    }
  }
};

template <class Dot>
struct BySlices {
  template <PanelFormat kFormat>
  struct Grouped {
    static constexpr PanelTraits kTraits = panel_traits(kFormat);

    template <int kTokens>
    struct Panel {
      static constexpr int kTaken = Dot::slices(kTraits.bits, kTokens);
      // Sums of more vectors than this stay in memory: registers are for what the products need.
      static constexpr bool kInRegisters = kTaken * kTokens * (Dot::kVectors + 1) <= 20;

      static void run(const LinearTile& tile) {
        constexpr bool kSuper = kTraits.scale == ScaleKind::kSuper;
        float32x4_t sums[kSlices][kTokens] = {};
        const std::byte* block = tile.panel;
        const auto* in = static_cast<const ActivationBlock*>(tile.activations);
        std::int64_t left = tile.cols / kBlockColumns;
        Prefetcher prefetcher(tile, (left + kSuperBlocks - 1) / kSuperBlocks);
        while (left > 0) {
          const int blocks = left < kSuperBlocks ? static_cast<int>(left) : kSuperBlocks;
          prefetcher.step();
          for (int first = 0; first < kSlices; first += kTaken) {
            run_span(block, blocks, first, in, &sums[first]);
          }
          block += (kSuper ? header_bytes(kTraits) : 0) + blocks * block_bytes(kTraits);
          in += blocks * kTokens;
          left -= blocks;
        }
        store_sums(tile, &sums[0][0]);
      }

     private:
      [[gnu::always_inline]] static void run_span(const std::byte* block, int blocks, int first,
                                                  const ActivationBlock* in,
                                                  float32x4_t (*sums)[kTokens]) {
        SuperScales<kFormat> super[kTaken];
#pragma GCC unroll 8
        for (int s = 0; s < kTaken; ++s) {
          super[s] = SuperScales<kFormat>::load(block, first + s);
        }
        if constexpr (kTraits.scale == ScaleKind::kSuper) block += header_bytes(kTraits);
        float32x4_t part[kTaken][kTokens];
        if constexpr (kInRegisters) copy(sums, part);
        for (int b = 0; b < blocks; ++b) {
          Block<Dot, kFormat, kTaken, kTokens>::run(block, first, super, in,
                                                    kInRegisters ? part : sums);
          block += block_bytes(kTraits);
          in += kTokens;
        }
        if constexpr (kInRegisters) copy(part, sums);
      }

      [[gnu::always_inline]] static void copy(const float32x4_t (*from)[kTokens],
                                              float32x4_t (*to)[kTokens]) {
#pragma GCC unroll 8
        for (int s = 0; s < kTaken; ++s) {
#pragma GCC unroll 8
          for (int t = 0; t < kTokens; ++t) to[s][t] = from[s][t];
        }
      }
    };
  };
};

}  // namespace
}  // namespace kun
