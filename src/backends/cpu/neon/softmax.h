// The softmax of one split of attention, for all NEON tables.
#pragma once

#include "backends/cpu/neon/exp.h"
#include "backends/cpu/neon/parts.h"

namespace kun {
namespace {

// Groups of positions that any query of the tile reads.
inline int groups_of(const AttentionTile& tile) {
  int longest = 0;
  for (int q = 0; q < tile.query_count; ++q) {
    if (tile.counts[q] > longest) longest = tile.counts[q];
  }
  return (longest + kGroupPositions - 1) / kGroupPositions;
}

// All ones in the first `count` lanes.
inline uint32x4_t mask_of(int count) {
  static constexpr std::int32_t kLanes[4] = {0, 1, 2, 3};
  return vcgtq_s32(vdupq_n_s32(count), vld1q_s32(kLanes));
}

// Turns the scores of a query into weights; those of positions past its count become 0.
inline void softmax(const AttentionTile& tile, int query) {
  const int count = tile.counts[query];
  float* row = tile.scores + query * kSplitPositions;
  const float32x4_t lowest = vdupq_n_f32(-__builtin_inff());
  float32x4_t largest = lowest;
  for (int p = 0; p < count; p += 4) {
    // A NaN score does not become the maximum; it makes its own weight NaN below.
    largest = vmaxnmq_f32(largest, vbslq_f32(mask_of(count - p), vld1q_f32(row + p), lowest));
  }
  const float max = vmaxnmvq_f32(largest);
  float32x4_t sum = vdupq_n_f32(0.0F);
  for (int p = 0; p < count; p += 4) {
    const float32x4_t weight = exp(vsubq_f32(vld1q_f32(row + p), vdupq_n_f32(max)));
    const float32x4_t kept =
        vreinterpretq_f32_u32(vandq_u32(mask_of(count - p), vreinterpretq_u32_f32(weight)));
    sum = vaddq_f32(sum, kept);
    vst1q_f32(row + p, kept);
  }
  tile.max[query] = max;
  tile.sum[query] = vaddvq_f32(sum);
}

}  // namespace
}  // namespace kun
