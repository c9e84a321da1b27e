// Attention over one split of a BF16 cache with ARMv8.6's dot products: a vector is 4 positions (or
// elements) of a pair, met by the same pair of a query (or of its weights, which are rounded to
// BF16). Everything that is not a product is shared with the other NEON tables.
#include "backends/cpu/neon/softmax.h"

namespace kun {
namespace {

constexpr int kQueriesPerPass = 6;
constexpr int kGroupVectors = kGroupPositions / 4;
constexpr int kPairsPerGroup = kGroupPositions / 2;

bfloat16x8_t load(const std::byte* data) {
  return vreinterpretq_bf16_u32(vld1q_u32(reinterpret_cast<const std::uint32_t*>(data)));
}

bfloat16x8_t broadcast(const std::byte* pair) {
  return vreinterpretq_bf16_u32(vld1q_dup_u32(reinterpret_cast<const std::uint32_t*>(pair)));
}

// --- Scores --------------------------------------------------------------------------------------

template <int kQueries>
void score_group(const AttentionTile& tile, int query, int group) {
  const int steps = tile.dim / 2;
  const auto* q = static_cast<const std::byte*>(tile.queries) + std::int64_t{query} * steps * 4;
  float32x4_t sums[kQueries][kGroupVectors] = {};
  for (int i = 0; i < steps; ++i) {
    bfloat16x8_t keys[kGroupVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
      keys[v] = load(tile.keys[group] + std::int64_t{i} * 64 + 16 * v);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      const bfloat16x8_t pair = broadcast(q + (std::int64_t{n} * steps + i) * 4);
#pragma GCC unroll 4
      for (int v = 0; v < kGroupVectors; ++v) {
        sums[n][v] = vbfdotq_f32(sums[n][v], keys[v], pair);
      }
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    float* out = tile.scores + (query + n) * kSplitPositions + group * kGroupPositions;
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
      vst1q_f32(out + 4 * v, vmulq_n_f32(sums[n][v], tile.scale));
    }
  }
}

void score(const AttentionTile& tile, int groups) {
  for (int group = 0; group < groups; ++group) {
    for (int query = 0; query < tile.query_count; query += kQueriesPerPass) {
      switch (tile.query_count - query) {
        case 1: score_group<1>(tile, query, group); break;
        case 2: score_group<2>(tile, query, group); break;
        case 3: score_group<3>(tile, query, group); break;
        case 4: score_group<4>(tile, query, group); break;
        case 5: score_group<5>(tile, query, group); break;
        default: score_group<6>(tile, query, group); break;
      }
    }
  }
}

// Over the scores already read: pairs of positions, half their size. `weights` is a row of scores.
void round_weights(float* weights, int count) {
  for (int p = 0; p < count; p += 4) {
    const bfloat16x8_t four = vcvtq_low_bf16_f32(vld1q_f32(weights + p));
    vst1_u32(reinterpret_cast<std::uint32_t*>(weights) + p / 2,
             vget_low_u32(vreinterpretq_u32_bf16(four)));
  }
}

// --- Values --------------------------------------------------------------------------------------

const std::byte* value_words(const AttentionTile& tile, int step, int first) {
  return tile.values[step / kPairsPerGroup] +
         (step % kPairsPerGroup * tile.value_stride + first) * 4;
}

const std::byte* weight_pair(const AttentionTile& tile, int query, int step) {
  return reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions) + step * 4;
}

// The steps past those all queries of a pass share, the last of which may be half a pair: what lies
// behind it is not this query's to touch, even with weight zero.
template <int kVectors>
[[gnu::always_inline]] inline void finish_query(const AttentionTile& tile, int query,
                                                int first_step, int first,
                                                float32x4_t (&sums)[kVectors]) {
  const int count = tile.counts[query];
  for (int step = first_step; step < (count + 1) / 2; ++step) {
    const uint32x4_t keep = vdupq_n_u32(2 * step + 1 == count ? 0xFFFFU : 0xFFFFFFFFU);
    const bfloat16x8_t pair = broadcast(weight_pair(tile, query, step));
    const std::byte* words = value_words(tile, step, first);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const uint32x4_t values = vreinterpretq_u32_bf16(load(words + 16 * v));
      sums[v] = vbfdotq_f32(sums[v], vreinterpretq_bf16_u32(vandq_u32(values, keep)), pair);
    }
  }
}

template <int kQueries, int kVectors>
void weigh_elements(const AttentionTile& tile, int query, int first) {
  int common = tile.counts[query];
  for (int n = 1; n < kQueries; ++n) {
    if (tile.counts[query + n] < common) common = tile.counts[query + n];
  }
  float32x4_t sums[kQueries][kVectors] = {};
  for (int step = 0; step < common / 2; ++step) {
    const std::byte* words = value_words(tile, step, first);
    bfloat16x8_t values[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) values[v] = load(words + 16 * v);
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      const bfloat16x8_t pair = broadcast(weight_pair(tile, query + n, step));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[n][v] = vbfdotq_f32(sums[n][v], values[v], pair);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    finish_query<kVectors>(tile, query + n, common / 2, first, sums[n]);
    float* out = tile.out + (query + n) * tile.value_dim + first;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) vst1q_f32(out + 4 * v, sums[n][v]);
  }
}

template <int kVectors>
void weigh_queries(const AttentionTile& tile, int query, int first) {
  switch (tile.query_count - query) {
    case 1: weigh_elements<1, kVectors>(tile, query, first); return;
    case 2: weigh_elements<2, kVectors>(tile, query, first); return;
    case 3: weigh_elements<3, kVectors>(tile, query, first); return;
    case 4: weigh_elements<4, kVectors>(tile, query, first); return;
    case 5: weigh_elements<5, kVectors>(tile, query, first); return;
    default: weigh_elements<6, kVectors>(tile, query, first); return;
  }
}

// The last elements of a head whose size is no multiple of 4: one at a time, in the first lane.
void weigh_one(const AttentionTile& tile, int query, int element) {
  const int count = tile.counts[query];
  float32x4_t sum = vdupq_n_f32(0.0F);
  for (int step = 0; step < (count + 1) / 2; ++step) {
    const std::uint32_t keep = 2 * step + 1 == count ? 0xFFFFU : 0xFFFFFFFFU;
    std::uint32_t word = 0;
    __builtin_memcpy(&word, value_words(tile, step, element), 4);
    const uint32x4_t value = vsetq_lane_u32(word & keep, vdupq_n_u32(0), 0);
    sum =
        vbfdotq_f32(sum, vreinterpretq_bf16_u32(value), broadcast(weight_pair(tile, query, step)));
  }
  tile.out[query * tile.value_dim + element] = vgetq_lane_f32(sum, 0);
}

void weigh(const AttentionTile& tile, int query) {
  int first = 0;
  for (; first + 16 <= tile.value_dim; first += 16) weigh_queries<4>(tile, query, first);
  for (; first + 4 <= tile.value_dim; first += 4) weigh_queries<1>(tile, query, first);
  for (; first < tile.value_dim; ++first) {
    const int end = query + kQueriesPerPass;
    for (int q = query; q < end && q < tile.query_count; ++q) weigh_one(tile, q, first);
  }
}

void attend(const AttentionTile& tile) {
  score(tile, groups_of(tile));
  for (int q = 0; q < tile.query_count; ++q) {
    softmax(tile, q);
    round_weights(tile.scores + q * kSplitPositions, tile.counts[q]);
  }
  for (int query = 0; query < tile.query_count; query += kQueriesPerPass) weigh(tile, query);
}

}  // namespace

void add_neon_bf16_attention(CpuKernels* table) {
  table->attention_bf16 = attend;
}

}  // namespace kun
