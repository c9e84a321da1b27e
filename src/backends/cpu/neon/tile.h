// What the linear kernels of all NEON tables share: slices of a panel, the result of a tile, scales
// and prefetching. A vector is 4 rows, so a panel is eight slices; as many of them are taken
// together as registers allow, and the columns are worked through in spans, so that a panel's bytes
// come from far away once, however often it is passed.
#pragma once

#include <arm_neon.h>

#include "backends/cpu/linear_table.h"
#include "backends/cpu/neon/parts.h"

namespace kun {
namespace {

constexpr int kSlices = 8;  // of 4 rows
constexpr int kSliceBytes = 16;

inline int8x16_t load_codes(const std::byte* data) {
  return vld1q_s8(reinterpret_cast<const std::int8_t*>(data));
}

inline uint32x4_t load_words(const std::byte* data) {
  return vld1q_u32(reinterpret_cast<const std::uint32_t*>(data));
}

// Rows 4 slice to 4 slice + 3 of one token.
inline void store_slice(const LinearTile& tile, int slice, int token, float32x4_t sum) {
  const int row = 4 * slice;
  float* out = tile.out + token * tile.out_stride + row;
  if (row + 4 <= tile.rows) {
    if (tile.bias != nullptr) sum = vaddq_f32(sum, vld1q_f32(tile.bias + row));
    if (tile.accumulate) sum = vaddq_f32(vld1q_f32(out), sum);
    vst1q_f32(out, sum);
    return;
  }
  float values[4];
  vst1q_f32(values, sum);
  for (int i = 0; i < 4 && row + i < tile.rows; ++i) {
    const float value = tile.bias == nullptr ? values[i] : values[i] + tile.bias[row + i];
    out[i] = tile.accumulate ? out[i] + value : value;
  }
}

// `sums` are [slice][token]. Once a tile, and so not worth a copy in every kernel.
[[gnu::noinline]] inline void store_sums(const LinearTile& tile, const float32x4_t* sums) {
  for (int slice = 0; slice < kSlices; ++slice) {
    for (int t = 0; t < tile.tokens; ++t) store_slice(tile, slice, t, *sums++);
  }
}

// Spreads a tile's prefetches over its spans of columns.
class Prefetcher {
 public:
  Prefetcher(const LinearTile& tile, std::int64_t spans)
      : next_(tile.prefetch),
        end_(tile.prefetch + tile.prefetch_bytes),
        per_step_((tile.prefetch_bytes / 64 + spans - 1) / spans * 64) {}

  void step() {
    for (std::int64_t i = 0; i < per_step_ && next_ < end_; i += 64, next_ += 64) {
      __builtin_prefetch(next_, 0, 2);
    }
  }

 private:
  const std::byte* next_;
  const std::byte* end_;
  std::int64_t per_step_;
};

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

// Super scales of one slice, and what they count in: the header before a span of a super format.
template <PanelFormat kFormat>
struct SuperScales {
  float32x4_t scale = {};
  float32x4_t min = {};

  static SuperScales load(const std::byte* header, int slice) {
    constexpr PanelTraits kTraits = panel_traits(kFormat);
    SuperScales result;
    if constexpr (kTraits.scale == ScaleKind::kSuper) {
      result.scale = load_f16(header + 8 * slice);
      if constexpr (kTraits.has_min) result.min = load_f16(header + 2 * kPanelRows + 8 * slice);
    }
    return result;
  }
};

// Codes of 8 columns and 4 rows: columns 0..3, then 4..7.
struct Octet {
  int8x16_t low;
  int8x16_t high;
};

// The halves of 16 bytes.
[[gnu::always_inline]] inline Octet split_nibbles(const std::byte* data) {
  const uint8x16_t both = vreinterpretq_u8_s8(load_codes(data));
  return {vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))),
          vreinterpretq_s8_u8(vshrq_n_u8(both, 4))};
}

// The third and fourth quad of 16 columns of 6-bit codes: the fourth is in the high bits of all
// three pieces.
[[gnu::always_inline]] inline Octet join_six_bits(uint8x16_t a, uint8x16_t b, uint8x16_t c) {
  const uint8x16_t high = vsliq_n_u8(vshrq_n_u8(b, 6), vshrq_n_u8(c, 6), 2);
  return {vreinterpretq_s8_u8(vandq_u8(c, vdupq_n_u8(63))),
          vreinterpretq_s8_u8(vsliq_n_u8(vshrq_n_u8(a, 6), high, 2))};
}

// Octet kOctet of a group, code_offset included; `codes` are those of a block and 4 of its rows.
template <PanelFormat kFormat, int kOctet>
[[gnu::always_inline]] inline Octet load_octet(const std::byte* codes, int group) {
  constexpr PanelTraits kTraits = panel_traits(kFormat);
  constexpr int kPiece = kPanelRows * 4;
  const int octet = group * (kTraits.group / 8) + kOctet;
  if constexpr (kTraits.bits == 8) {
    const std::byte* data = codes + 2 * octet * kPiece;
    return {load_codes(data), load_codes(data + kPiece)};
  } else if constexpr (kTraits.bits == 4) {
    return split_nibbles(codes + octet * kPiece);
  } else {
    const std::byte* data = codes + octet / 2 * 3 * kPiece;
    const uint8x16_t a = vreinterpretq_u8_s8(load_codes(data));
    const uint8x16_t b = vreinterpretq_u8_s8(load_codes(data + kPiece));
    if constexpr (kOctet % 2 == 0) {
      const uint8x16_t mask = vdupq_n_u8(63);
      return {vreinterpretq_s8_u8(vandq_u8(a, mask)), vreinterpretq_s8_u8(vandq_u8(b, mask))};
    } else {
      return join_six_bits(a, b, vreinterpretq_u8_s8(load_codes(data + 2 * kPiece)));
    }
  }
}

}  // namespace
}  // namespace kun
