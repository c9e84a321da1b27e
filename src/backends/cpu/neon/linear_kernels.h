// Linear kernels for NEON, for a given way to multiply bytes: ARMv8.0 widens products to 16 bits,
// ARMv8.2 has dot products. A vector is 4 rows, so a panel is eight slices; as many of them are
// taken together as registers allow. Included by one file of each table.
#pragma once

#include <arm_neon.h>

#include "backends/cpu/neon/parts.h"

namespace kun {
namespace {

constexpr int kSlices = 8;  // of 4 rows
constexpr int kSliceBytes = 16;

inline int8x16_t load_codes(const std::byte* data) {
  return vld1q_s8(reinterpret_cast<const std::int8_t*>(data));
}

template <int kTokens, int kTaken>
[[gnu::always_inline]] inline void store(const LinearTile& tile, int first_slice,
                                         const float32x4_t (&sums)[kTaken][kTokens]) {
#pragma GCC unroll 8
  for (int s = 0; s < kTaken; ++s) {
    const int row = 4 * (first_slice + s);
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      float values[4];
      vst1q_f32(values, sums[s][t]);
      float* out = tile.out + t * tile.out_stride + row;
      for (int i = 0; i < 4 && row + i < tile.rows; ++i) {
        const float value = tile.bias == nullptr ? values[i] : values[i] + tile.bias[row + i];
        out[i] = tile.accumulate ? out[i] + value : value;
      }
    }
  }
}

// --- Float panels
// ---------------------------------------------------------------------------------

constexpr int float_slices(int tokens) {
  return tokens <= 2 ? 8 : 4;
}

struct F32Columns {
  static constexpr int kPerWord = 1;
  static float32x4_t part(uint32x4_t word, int) { return vreinterpretq_f32_u32(word); }
};

struct Bf16Columns {
  static constexpr int kPerWord = 2;
  static float32x4_t part(uint32x4_t pair, int which) {
    return vreinterpretq_f32_u32(which == 0 ? vshlq_n_u32(pair, 16)
                                            : vandq_u32(pair, vdupq_n_u32(0xFFFF0000U)));
  }
};

template <class Columns, int kTokens>
void float_slices_of(const LinearTile& tile, int first_slice) {
  constexpr int kTaken = float_slices(kTokens);
  float32x4_t sums[kTaken][kTokens] = {};
  const std::byte* weights = tile.panel + first_slice * kSliceBytes;
  const auto* in = static_cast<const float*>(tile.activations);
  for (std::int64_t c = 0; c < tile.cols; c += Columns::kPerWord, weights += 128) {
#pragma GCC unroll 2
    for (int k = 0; k < Columns::kPerWord; ++k) {
      if (c + k == tile.cols) break;
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        const auto* words = reinterpret_cast<const std::uint32_t*>(weights + s * kSliceBytes);
        const float32x4_t w = Columns::part(vld1q_u32(words), k);
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) sums[s][t] = vfmaq_n_f32(sums[s][t], w, in[t]);
      }
      in += kTokens;
    }
  }
  store(tile, first_slice, sums);
}

template <class Columns>
struct Float {
  template <int kTokens>
  struct Panel {
    static void run(const LinearTile& tile) {
      for (int s = 0; s < kSlices; s += float_slices(kTokens)) {
        float_slices_of<Columns, kTokens>(tile, s);
      }
    }
  };
};

// --- Grouped panels
// -------------------------------------------------------------------------------

constexpr int grouped_slices(int tokens) {
  return tokens == 1 ? 8 : tokens == 2 ? 4 : 2;
}

inline float32x4_t load_f16(const std::byte* data) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(data))));
}

// 4 scales of a plane; `super` multiplies integer steps.
template <ScaleKind kKind>
[[gnu::always_inline]] inline float32x4_t load_scales(const std::byte* data, float32x4_t super) {
  if constexpr (kKind == ScaleKind::kF32) return vld1q_f32(reinterpret_cast<const float*>(data));
  if constexpr (kKind == ScaleKind::kF16) return load_f16(data);
  if constexpr (kKind == ScaleKind::kSuper) {
    std::int32_t four = 0;
    __builtin_memcpy(&four, data, 4);
    const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes)))), super);
  }
}

template <int kTaken, int kTokens>
using Dots = int32x4_t[kTaken][kTokens];

// Columns 4 kLane to 4 kLane + 3 of a run of 16, all slices and tokens.
template <class Dot, int kBits, int kLane, int kTaken, int kTokens>
[[gnu::always_inline]] inline void dot_quad(const std::byte* codes, int column,
                                            const int8x16_t (&in)[kTokens],
                                            Dots<kTaken, kTokens>& dots) {
  const int quad = column / 4 + kLane;
#pragma GCC unroll 8
  for (int s = 0; s < kTaken; ++s) {
    int8x16_t weights;
    if constexpr (kBits == 8) {
      weights = load_codes(codes + quad * kPanelRows * 4 + s * kSliceBytes);
    } else {
      const uint8x16_t both =
          vreinterpretq_u8_s8(load_codes(codes + quad / 2 * kPanelRows * 4 + s * kSliceBytes));
      weights = vreinterpretq_s8_u8(kLane % 2 == 0 ? vandq_u8(both, vdupq_n_u8(15))
                                                   : vshrq_n_u8(both, 4));
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      dots[s][t] = Dot::template add<kLane>(dots[s][t], weights, in[t]);
    }
  }
}

template <class Dot, int kBits, int kTaken, int kTokens>
[[gnu::always_inline]] inline void dot_sixteen(const std::byte* codes, int column,
                                               const ActivationBlock* in,
                                               Dots<kTaken, kTokens>& dots) {
  int8x16_t x[kTokens];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) x[t] = vld1q_s8(in[t].codes + column);
  dot_quad<Dot, kBits, 0, kTaken, kTokens>(codes, column, x, dots);
  dot_quad<Dot, kBits, 1, kTaken, kTokens>(codes, column, x, dots);
  dot_quad<Dot, kBits, 2, kTaken, kTokens>(codes, column, x, dots);
  dot_quad<Dot, kBits, 3, kTaken, kTokens>(codes, column, x, dots);
}

// The slices from `first_slice` of one block.
template <class Dot, PanelFormat kFormat, int kTaken, int kTokens>
[[gnu::always_inline]] inline void multiply_block(const std::byte* block, int first_slice,
                                                  const float32x4_t (&super)[kTaken][2],
                                                  const ActivationBlock* in,
                                                  float32x4_t (&sums)[kTaken][kTokens]) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr int kScaleBytes = scale_bytes(kTraits.scale);
  const std::byte* codes = block + first_slice * kSliceBytes;
  const std::byte* scales = block + code_bytes(kTraits) + 4 * first_slice * kScaleBytes;
  const std::byte* mins = scales + scale_plane_bytes(kTraits);
  for (int g = 0; g < kBlockColumns / kTraits.group; ++g) {
    Dots<kTaken, kTokens> dots;
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const int sum = kTraits.group == 32 ? in[t].negated_sum : in[t].negated_half_sum[g];
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) dots[s][t] = vdupq_n_s32(code_offset(kTraits) * sum);
    }
    for (int c = g * kTraits.group; c < (g + 1) * kTraits.group; c += 16) {
      dot_sixteen<Dot, kTraits.bits, kTaken, kTokens>(codes, c, in, dots);
    }
#pragma GCC unroll 8
    for (int s = 0; s < kTaken; ++s) {
      const int at = (g * kPanelRows + 4 * s) * kScaleBytes;
      const float32x4_t scale = load_scales<kTraits.scale>(scales + at, super[s][0]);
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        const float32x4_t joint = vmulq_n_f32(scale, in[t].scale);
        sums[s][t] = vfmaq_f32(sums[s][t], vcvtq_f32_s32(dots[s][t]), joint);
        if constexpr (kTraits.has_min) {
          const float32x4_t min = load_scales<kTraits.scale>(mins + at, super[s][1]);
          const float sum = kTraits.group == 32 ? in[t].sum : in[t].half_sum[g];
          sums[s][t] = vfmaq_n_f32(sums[s][t], min, sum);
        }
      }
    }
  }
}

template <class Dot, PanelFormat kFormat, int kTokens>
void grouped_slices_of(const LinearTile& tile, int first_slice) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr bool kSuper = kTraits.scale == ScaleKind::kSuper;
  constexpr int kSpan = kSuper ? kSuperBlocks : 1;
  constexpr int kTaken = grouped_slices(kTokens);
  float32x4_t sums[kTaken][kTokens] = {};
  const std::byte* block = tile.panel;
  const auto* in = static_cast<const ActivationBlock*>(tile.activations);
  const std::int64_t spans = tile.cols / (kBlockColumns * kSpan);
  for (std::int64_t i = 0; i < spans; ++i) {
    float32x4_t super[kTaken][2] = {};
    if constexpr (kSuper) {
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        const std::byte* header = block + 8 * (first_slice + s);
        super[s][0] = load_f16(header);
        if constexpr (kTraits.has_min) super[s][1] = load_f16(header + 2 * kPanelRows);
      }
      block += header_bytes(kTraits);
    }
    for (int b = 0; b < kSpan; ++b) {
      multiply_block<Dot, kFormat, kTaken, kTokens>(block, first_slice, super, in, sums);
      block += block_bytes(kTraits);
      in += kTokens;
    }
  }
  store(tile, first_slice, sums);
}

template <class Dot, PanelFormat kFormat>
struct Grouped {
  template <int kTokens>
  struct Panel {
    static void run(const LinearTile& tile) {
      for (int s = 0; s < kSlices; s += grouped_slices(kTokens)) {
        grouped_slices_of<Dot, kFormat, kTokens>(tile, s);
      }
    }
  };
};

// --- The table
// ------------------------------------------------------------------------------------

template <template <int> class Panel>
void dispatch(const LinearTile& tile) {
  switch (tile.tokens) {
    case 1: Panel<1>::run(tile); return;
    case 2: Panel<2>::run(tile); return;
    case 3: Panel<3>::run(tile); return;
    case 4: Panel<4>::run(tile); return;
    case 5: Panel<5>::run(tile); return;
    default: Panel<6>::run(tile); return;
  }
}

template <class Dot, PanelFormat kFormat>
void add_format(CpuKernels* table) {
  table->linear[static_cast<int>(kFormat)] = dispatch<Grouped<Dot, kFormat>::template Panel>;
}

template <class Dot>
void add_grouped_formats(CpuKernels* table) {
  add_format<Dot, PanelFormat::k4F16>(table);
  add_format<Dot, PanelFormat::k4F16Min>(table);
  add_format<Dot, PanelFormat::k4SuperMin>(table);
  add_format<Dot, PanelFormat::k4Super16>(table);
  add_format<Dot, PanelFormat::k4Super16Min>(table);
  add_format<Dot, PanelFormat::k8F16>(table);
  add_format<Dot, PanelFormat::k8F16Min>(table);
  add_format<Dot, PanelFormat::k8F32>(table);
  add_format<Dot, PanelFormat::k8F32Group16>(table);
  add_format<Dot, PanelFormat::k8Super>(table);
  add_format<Dot, PanelFormat::k8SuperMin>(table);
  add_format<Dot, PanelFormat::k8Super16>(table);
}

}  // namespace
}  // namespace kun
