// Attention over one split of an INT8 cache, for all NEON tables. Weights, times the scale of their
// value, become integers of 15 bits relative to the largest of the split, so that all sums are
// exact: what rounds is each weight, by at most half of 1 / 32639 of the largest. `Products` says
// how bytes are multiplied:
//   score<kQueries>(tile, query, piece, sums): [query][4 vectors of 4 positions];
//   narrow(row, groups): turns 32-bit weights into its own form, in place;
//   weigh<kQueries>(tile, query, first, groups, sums): [query][2 vectors of 4 elements].
#pragma once

#include "backends/cpu/neon/attention.h"

namespace kun {
namespace {

constexpr int kPairsPerGroup = kGroupPositions / 2;
constexpr int kElementVectors = 2;

inline int8x16_t load_bytes(const std::byte* data) {
  return vld1q_s8(reinterpret_cast<const std::int8_t*>(data));
}

// The scales of a piece of `elements` a position.
inline const float* scales_of(const std::byte* piece, std::int64_t elements) {
  return reinterpret_cast<const float*>(piece + kGroupPositions * elements);
}

// Scores become weights times value scales, those of positions past the count 0. Returns the
// largest, or NaN where one is NaN.
inline float weigh_scales(const AttentionTile& tile, int query) {
  softmax(tile, query);
  const int count = tile.counts[query];
  float* row = tile.scores + query * kSplitPositions;
  float32x4_t largest = vdupq_n_f32(0.0F);
  float32x4_t poison = vdupq_n_f32(0.0F);  // 0, or NaN
  for (int p = 0; p < count; p += 4) {
    const float* scales = scales_of(tile.values[p / kGroupPositions], tile.value_stride);
    const float32x4_t product =
        vmulq_f32(vld1q_f32(row + p), vld1q_f32(scales + p % kGroupPositions));
    const float32x4_t scaled =
        vreinterpretq_f32_u32(vandq_u32(mask_of(count - p), vreinterpretq_u32_f32(product)));
    largest = vmaxnmq_f32(largest, scaled);
    poison = vfmaq_f32(poison, scaled, vdupq_n_f32(0.0F));
    vst1q_f32(row + p, scaled);
  }
  return vmaxnmvq_f32(largest) + vaddvq_f32(poison);
}

// Leaves integer weights, 0 past the query's count and up to the end of `groups`, where the scores
// were. Returns what a weight of 1 is worth.
inline float round_weights(const AttentionTile& tile, int query, int groups) {
  const float largest = weigh_scales(tile, query);
  const float inverse = largest >= kWeightFloor ? kWeightMax / largest : 0.0F;
  float* row = tile.scores + query * kSplitPositions;
  for (int p = 0; p < groups * kGroupPositions; p += 4) {
    int32x4_t codes = vdupq_n_s32(0);
    if (p < tile.counts[query] && inverse > 0.0F) {
      codes = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(row + p), inverse));
    }
    vst1q_f32(row + p, vreinterpretq_f32_s32(codes));
  }
  return largest * (1.0F / kWeightMax);
}

template <class Products>
class Int8Cache {
 public:
  static constexpr int kQueriesPerPass = 4;

  explicit Int8Cache(const AttentionTile& tile) : groups_(groups_of(tile)) {}

  template <int kQueries>
  static void score(const AttentionTile& tile, int query, int group) {
    int32x4_t sums[kQueries][kGroupVectors] = {};
    Products::template score<kQueries>(tile, query, tile.keys[group], sums);
    const float* scales = scales_of(tile.keys[group], tile.dim);
#pragma GCC unroll 4
    for (int n = 0; n < kQueries; ++n) {
      const float scale = tile.scale * tile.query_scales[query + n];
      float* out = tile.scores + (query + n) * kSplitPositions + group * kGroupPositions;
#pragma GCC unroll 4
      for (int v = 0; v < kGroupVectors; ++v) {
        const float32x4_t factor = vmulq_n_f32(vld1q_f32(scales + 4 * v), scale);
        vst1q_f32(out + 4 * v, vmulq_f32(vcvtq_f32_s32(sums[n][v]), factor));
      }
    }
  }

  void weigh(const AttentionTile& tile, int query) {
    units_[query] = round_weights(tile, query, groups_);
    Products::narrow(tile.scores + query * kSplitPositions, groups_);
  }

  static int width(int) {
    return 4 * kElementVectors;
  }

  template <int kQueries>
  void sum(const AttentionTile& tile, int query, int first) const {
    int32x4_t sums[kQueries][kElementVectors] = {};
    Products::template weigh<kQueries>(tile, query, first, groups_, sums);
    const int count = tile.value_dim - first < 8 ? tile.value_dim - first : 8;
#pragma GCC unroll 4
    for (int n = 0; n < kQueries; ++n) {
      float eight[4 * kElementVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kElementVectors; ++v) {
        vst1q_f32(eight + 4 * v, vmulq_n_f32(vcvtq_f32_s32(sums[n][v]), units_[query + n]));
      }
      float* out = tile.out + (query + n) * tile.value_dim + first;
      __builtin_memcpy(out, eight, static_cast<std::size_t>(count) * sizeof(float));
    }
  }

 private:
  int groups_;
  float units_[kQueriesMax];  // what a weight of 1 is worth
};
// A pair of positions, elements [first, first + 8), two bytes each. Past the head's end it reads
// what is never stored: the next pair, or the scales of the piece.
inline const std::byte* value_pair(const AttentionTile& tile, int pair, int first) {
  return tile.values[pair / kPairsPerGroup] +
         (pair % kPairsPerGroup * tile.value_stride + first) * 2;
}

}  // namespace
}  // namespace kun
