// Attention of an INT8 cache for ARMv8.0, which multiplies bytes into 16 bits, and the quantizer of
// heads that all NEON tables share.
#include "backends/cpu/neon/attention_int8.h"

#include "backends/cpu/code_scale.h"

namespace kun {
namespace {

struct Widening {
  // Two of the four products of a position fit 16 bits.
  static int32x4_t add(int32x4_t sum, int8x16_t keys, int8x8_t query) {
    const int16x8_t low = vmull_s8(vget_low_s8(keys), query);
    const int16x8_t high = vmull_s8(vget_high_s8(keys), query);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
  }

  template <int kQueries>
  static void score(const AttentionTile& tile, int query, const std::byte* piece,
                    int32x4_t (&sums)[kQueries][kGroupVectors]) {
    const auto* q = static_cast<const std::byte*>(tile.queries) + std::int64_t{query} * tile.dim;
    for (int i = 0; i < tile.dim; i += 4) {
      int8x8_t element[kQueries];
#pragma GCC unroll 4
      for (int n = 0; n < kQueries; ++n) {
        const std::byte* four = q + std::int64_t{n} * tile.dim + i;
        element[n] = vreinterpret_s8_s32(vld1_dup_s32(reinterpret_cast<const std::int32_t*>(four)));
      }
#pragma GCC unroll 4
      for (int v = 0; v < kGroupVectors; ++v) {
        const int8x16_t keys = load_bytes(piece + std::int64_t{i} * kGroupPositions + 16 * v);
#pragma GCC unroll 4
        for (int n = 0; n < kQueries; ++n) sums[n][v] = add(sums[n][v], keys, element[n]);
      }
    }
  }

  // 16 bits each: half the size, over those already read.
  static void narrow(float* row, int groups) {
    for (int p = 0; p < groups * kGroupPositions; p += 4) {
      const int32x4_t codes = vreinterpretq_s32_f32(vld1q_f32(row + p));
      vst1_s32(reinterpret_cast<std::int32_t*>(row) + p / 2,
               vreinterpret_s32_s16(vmovn_s32(codes)));
    }
  }

  template <int kQueries>
  static void weigh(const AttentionTile& tile, int query, int first, int groups,
                    int32x4_t (&sums)[kQueries][kElementVectors]) {
    const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
    for (int pair = 0; pair < groups * kPairsPerGroup; ++pair) {
      const auto* codes = reinterpret_cast<const std::int8_t*>(value_pair(tile, pair, first));
      const int8x8x2_t values = vld2_s8(codes);
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        const int16x8_t wide = vmovl_s8(values.val[k]);
#pragma GCC unroll 4
        for (int n = 0; n < kQueries; ++n) {
          std::int16_t weight = 0;
          __builtin_memcpy(&weight, weights + (n * kSplitPositions + pair) * 4 + 2 * k, 2);
          sums[n][0] = vmlal_n_s16(sums[n][0], vget_low_s16(wide), weight);
          sums[n][1] = vmlal_n_s16(sums[n][1], vget_high_s16(wide), weight);
        }
      }
    }
  }
};

// Elements [i, i + 4) of a head of `size`, 0 past its end.
float32x4_t load_part(const float* in, int i, int size) {
  if (i + 4 <= size) return vld1q_f32(in + i);
  float four[4] = {};
  __builtin_memcpy(four, in + i, static_cast<std::size_t>(size - i) * sizeof(float));
  return vld1q_f32(four);
}

float quantize_head(const float* in, int size, std::int8_t* codes) {
  uint32x4_t largest_bits = vdupq_n_u32(0);
  for (int i = 0; i < size; i += 4) {
    const uint32x4_t bits = vreinterpretq_u32_f32(vabsq_f32(load_part(in, i, size)));
    largest_bits = vmaxq_u32(largest_bits, bits);
  }
  const CodeScale by = code_scale(vmaxvq_u32(largest_bits));
  for (int i = 0; i < size; i += 4) {
    int32x4_t words = vcvtnq_s32_f32(vmulq_n_f32(load_part(in, i, size), by.inverse));
    if (by.is_zero) words = vdupq_n_s32(0);
    const int16x4_t pairs = vmovn_s32(words);
    std::int8_t eight[8];
    vst1_s8(eight, vmovn_s16(vcombine_s16(pairs, pairs)));
    __builtin_memcpy(codes + i, eight, static_cast<std::size_t>(size - i < 4 ? size - i : 4));
  }
  return by.scale;
}

}  // namespace

void add_neon_int8_attention(CpuKernels* table) {
  table->attention_int8 = attend<Int8Cache<Widening>>;
  table->quantize_head = quantize_head;
}

}  // namespace kun
