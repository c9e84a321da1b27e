// Attention over one split for all NEON tables: the walk over a tile, the softmax, and scores and
// sums of values where both are floats. A `Cache` says how a tile's keys and values are met:
//   kQueriesPerPass;
//   score<kQueries>(tile, query, group): scores of 16 positions;
//   weigh(tile, query): the softmax; leaves weights, in its own form, where the scores were;
//   width(left): how many elements are summed at once where `left` are left;
//   sum<kQueries>(tile, query, first): the weighted sums of so many elements.
#pragma once

#include "backends/cpu/neon/exp.h"
#include "backends/cpu/neon/parts.h"

namespace kun {
namespace {

constexpr int kGroupVectors = kGroupPositions / 4;

// --- The walk over a tile ------------------------------------------------------------------------

template <int kCount>
struct Queries {
  static constexpr int kValue = kCount;
};

// Calls pass(Queries<n>()), n being the smaller of `count` and kMost.
template <int kMost, class Pass>
void with_queries(int count, Pass pass) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_queries<kMost - 1>(count, pass);
  }
  pass(Queries<kMost>());
}

// Groups of positions that any query of the tile reads.
inline int groups_of(const AttentionTile& tile) {
  int longest = 0;
  for (int q = 0; q < tile.query_count; ++q) {
    if (tile.counts[q] > longest) longest = tile.counts[q];
  }
  return (longest + kGroupPositions - 1) / kGroupPositions;
}

template <class Cache>
void attend(const AttentionTile& tile) {
  constexpr int kMost = Cache::kQueriesPerPass;
  Cache cache(tile);
  const int groups = groups_of(tile);
  for (int group = 0; group < groups; ++group) {
    for (int query = 0; query < tile.query_count; query += kMost) {
      with_queries<kMost>(tile.query_count - query, [&](auto queries) {
        cache.template score<queries.kValue>(tile, query, group);
      });
    }
  }
  for (int q = 0; q < tile.query_count; ++q) cache.weigh(tile, q);
  for (int query = 0; query < tile.query_count; query += kMost) {
    for (int first = 0; first < tile.value_dim; first += Cache::width(tile.value_dim - first)) {
      with_queries<kMost>(tile.query_count - query, [&](auto queries) {
        cache.template sum<queries.kValue>(tile, query, first);
      });
    }
  }
}

// --- Softmax -------------------------------------------------------------------------------------

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

// --- Sums of floats ------------------------------------------------------------------------------

// A step takes 4 bytes of every key, or of every element of a few values, in one product or more.
// `Format` says how:
//   kQueriesPerPass, and weigh(tile, query) as above;
//   kElements of a key, kPositions of the values, kParts (products) in a step;
//   part(words, k): what is multiplied in the k-th; add(sum, part, broadcast(data)): the product
//   with 4 bytes of a query or of its weights.
template <class Format>
struct FloatCache {
  static constexpr int kQueriesPerPass = Format::kQueriesPerPass;
  static constexpr int kParts = Format::kParts;
  static constexpr int kPositions = Format::kPositions;

  explicit FloatCache(const AttentionTile&) {}

  template <int kQueries>
  static void score(const AttentionTile& tile, int query, int group) {
    const int steps = tile.dim / Format::kElements;
    const int parts = steps * kParts;  // of a query, 4 bytes each
    const auto* q = static_cast<const std::byte*>(tile.queries) + std::int64_t{query} * parts * 4;
    float32x4_t sums[kQueries][kGroupVectors] = {};
    for (int i = 0; i < steps; ++i) {
      uint32x4_t words[kGroupVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kGroupVectors; ++v) {
        words[v] = load(tile.keys[group] + std::int64_t{i} * 64 + 16 * v, 4);
      }
#pragma GCC unroll 2
      for (int k = 0; k < kParts; ++k) {
        const std::byte* part = q + (std::int64_t{i} * kParts + k) * 4;
        add_part(words, k, part, parts, sums);
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

  static void weigh(const AttentionTile& tile, int query) {
    Format::weigh(tile, query);
  }

  static int width(int left) {
    return left >= 16 ? 16 : 4;
  }

  template <int kQueries>
  static void sum(const AttentionTile& tile, int query, int first) {
    const int left = tile.value_dim - first;
    if (left >= 16) return sum_vectors<kQueries, 4>(tile, query, first, 4);
    sum_vectors<kQueries, 1>(tile, query, first, left < 4 ? left : 4);
  }

 private:
  // The first `lanes` words; what lies behind them is not touched.
  static uint32x4_t load(const std::byte* data, int lanes) {
    if (lanes == 4) return vld1q_u32(reinterpret_cast<const std::uint32_t*>(data));
    std::uint32_t words[4] = {};
    __builtin_memcpy(words, data, static_cast<std::size_t>(lanes) * 4);
    return vld1q_u32(words);
  }

  // The k-th products of a step; `data` and every `stride` words from there are what queries bring.
  template <int kQueries, int kVectors>
  [[gnu::always_inline]] static void add_part(const uint32x4_t (&words)[kVectors], int k,
                                              const std::byte* data, std::int64_t stride,
                                              float32x4_t (&sums)[kQueries][kVectors]) {
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      const auto factor = Format::broadcast(data + n * stride * 4);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        sums[n][v] = Format::add(sums[n][v], Format::part(words[v], k), factor);
      }
    }
  }

  static const std::byte* value_words(const AttentionTile& tile, int step, int first) {
    constexpr int kStepsPerGroup = kGroupPositions / kPositions;
    return tile.values[step / kStepsPerGroup] +
           (step % kStepsPerGroup * tile.value_stride + first) * 4;
  }

  // Elements [first, first + 4 kVectors), or fewer of the last vector. Steps that all queries share
  // come first, then each query's own.
  template <int kQueries, int kVectors>
  static void sum_vectors(const AttentionTile& tile, int query, int first, int last_lanes) {
    const int lanes = kVectors > 1 ? 4 : last_lanes;
    int common = tile.counts[query];
    for (int n = 1; n < kQueries; ++n) {
      if (tile.counts[query + n] < common) common = tile.counts[query + n];
    }
    const int steps = common / kPositions;
    const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
    float32x4_t sums[kQueries][kVectors] = {};
    for (int step = 0; step < steps; ++step) {
      const std::byte* data = value_words(tile, step, first);
      uint32x4_t words[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) words[v] = load(data + 16 * v, lanes);
#pragma GCC unroll 2
      for (int k = 0; k < kParts; ++k) {
        add_part(words, k, weights + (step * kParts + k) * 4, kSplitPositions, sums);
      }
    }
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      finish_query(tile, query + n, steps, first, lanes, sums[n]);
      float* out = tile.out + (query + n) * tile.value_dim + first;
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(out + 4 * v, sums[n][v], lanes);
    }
  }

  // Product by product, the last of which may be of half a pair: what lies behind it is not this
  // query's to touch, even with weight zero.
  template <int kVectors>
  [[gnu::always_inline]] static void finish_query(const AttentionTile& tile, int query,
                                                  int first_step, int first, int lanes,
                                                  float32x4_t (&sums)[kVectors]) {
    const int count = tile.counts[query];
    const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
    for (int i = first_step * kParts; i * kPositions < count * kParts; ++i) {
      const bool half = (i + 1) * kPositions > count * kParts;
      const uint32x4_t keep = vdupq_n_u32(half ? 0xFFFFU : 0xFFFFFFFFU);
      const auto factor = Format::broadcast(weights + i * 4);
      const std::byte* data = value_words(tile, i / kParts, first);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const uint32x4_t words = vandq_u32(load(data + 16 * v, lanes), keep);
        sums[v] = Format::add(sums[v], Format::part(words, i % kParts), factor);
      }
    }
  }

  static void store(float* out, float32x4_t values, int lanes) {
    if (lanes == 4) return vst1q_f32(out, values);
    float four[4];
    vst1q_f32(four, values);
    __builtin_memcpy(out, four, static_cast<std::size_t>(lanes) * sizeof(float));
  }
};

}  // namespace
}  // namespace kun
