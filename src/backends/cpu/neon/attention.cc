// Attention over one split for NEON. As the AVX2 version, 4 lanes at a time, with a BF16 cache
// widened to F32 in registers: queries and weights are not rounded.
#include "backends/cpu/neon/softmax.h"

namespace kun {
namespace {

constexpr int kQueriesPerPass = 4;
constexpr int kGroupVectors = kGroupPositions / 4;

uint32x4_t load(const std::byte* data) {
  return vld1q_u32(reinterpret_cast<const std::uint32_t*>(data));
}

struct F32Cache {
  static constexpr int kPerStep = 1;  // elements, or positions, in 4 bytes
  static float32x4_t part(uint32x4_t word, int) { return vreinterpretq_f32_u32(word); }
  static float scalar(std::uint32_t word, int) {
    float value = 0.0F;
    __builtin_memcpy(&value, &word, 4);
    return value;
  }
};

struct Bf16Cache {
  static constexpr int kPerStep = 2;
  static float32x4_t part(uint32x4_t pair, int which) {
    return vreinterpretq_f32_u32(which == 0 ? vshlq_n_u32(pair, 16)
                                            : vandq_u32(pair, vdupq_n_u32(0xFFFF0000U)));
  }
  static float scalar(std::uint32_t pair, int which) {
    return F32Cache::scalar(which == 0 ? pair << 16 : pair & 0xFFFF0000U, 0);
  }
};

// --- Scores
// ---------------------------------------------------------------------------------------

template <class Cache, int kQueries>
void score_group(const AttentionTile& tile, int query, int group) {
  const float* q = static_cast<const float*>(tile.queries) + std::int64_t{query} * tile.dim;
  float32x4_t sums[kQueries][kGroupVectors] = {};
  for (int i = 0; i < tile.dim / Cache::kPerStep; ++i) {
    const std::byte* words = tile.keys[group] + std::int64_t{i} * 64;
#pragma GCC unroll 2
    for (int k = 0; k < Cache::kPerStep; ++k) {
#pragma GCC unroll 4
      for (int v = 0; v < kGroupVectors; ++v) {
        const float32x4_t keys = Cache::part(load(words + 16 * v), k);
#pragma GCC unroll 4
        for (int n = 0; n < kQueries; ++n) {
          sums[n][v] = vfmaq_n_f32(sums[n][v], keys, q[n * tile.dim + i * Cache::kPerStep + k]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < kQueries; ++n) {
    float* out = tile.scores + (query + n) * kSplitPositions + group * kGroupPositions;
#pragma GCC unroll 4
    for (int v = 0; v < kGroupVectors; ++v) {
      vst1q_f32(out + 4 * v, vmulq_n_f32(sums[n][v], tile.scale));
    }
  }
}

template <class Cache>
void score(const AttentionTile& tile, int groups) {
  for (int group = 0; group < groups; ++group) {
    for (int query = 0; query < tile.query_count; query += kQueriesPerPass) {
      switch (tile.query_count - query) {
        case 1: score_group<Cache, 1>(tile, query, group); break;
        case 2: score_group<Cache, 2>(tile, query, group); break;
        case 3: score_group<Cache, 3>(tile, query, group); break;
        default: score_group<Cache, 4>(tile, query, group); break;
      }
    }
  }
}

// --- Values
// ---------------------------------------------------------------------------------------

template <class Cache>
const std::byte* value_words(const AttentionTile& tile, int step, int first) {
  constexpr int kStepsPerGroup = kGroupPositions / Cache::kPerStep;
  return tile.values[step / kStepsPerGroup] +
         (step % kStepsPerGroup * tile.value_stride + first) * 4;
}

// Elements [first, first + 4 kVectors). Positions all queries share first, then each query's own:
// none behind a query's count is touched by it.
template <class Cache, int kQueries, int kVectors>
void weigh_elements(const AttentionTile& tile, int query, int first) {
  int common = tile.counts[query];
  for (int n = 1; n < kQueries; ++n) {
    if (tile.counts[query + n] < common) common = tile.counts[query + n];
  }
  const int steps = common / Cache::kPerStep;
  const float* weights = tile.scores + query * kSplitPositions;
  float32x4_t sums[kQueries][kVectors] = {};
  for (int step = 0; step < steps; ++step) {
    const std::byte* words = value_words<Cache>(tile, step, first);
#pragma GCC unroll 2
    for (int k = 0; k < Cache::kPerStep; ++k) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const float32x4_t values = Cache::part(load(words + 16 * v), k);
#pragma GCC unroll 4
        for (int n = 0; n < kQueries; ++n) {
          const float weight = weights[n * kSplitPositions + step * Cache::kPerStep + k];
          sums[n][v] = vfmaq_n_f32(sums[n][v], values, weight);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < kQueries; ++n) {
    for (int p = steps * Cache::kPerStep; p < tile.counts[query + n]; ++p) {
      const std::byte* words = value_words<Cache>(tile, p / Cache::kPerStep, first);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const float32x4_t values = Cache::part(load(words + 16 * v), p % Cache::kPerStep);
        sums[n][v] = vfmaq_n_f32(sums[n][v], values, weights[n * kSplitPositions + p]);
      }
    }
    float* out = tile.out + (query + n) * tile.value_dim + first;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) vst1q_f32(out + 4 * v, sums[n][v]);
  }
}

template <class Cache, int kVectors>
void weigh_queries(const AttentionTile& tile, int query, int first) {
  switch (tile.query_count - query) {
    case 1: weigh_elements<Cache, 1, kVectors>(tile, query, first); return;
    case 2: weigh_elements<Cache, 2, kVectors>(tile, query, first); return;
    case 3: weigh_elements<Cache, 3, kVectors>(tile, query, first); return;
    default: weigh_elements<Cache, 4, kVectors>(tile, query, first); return;
  }
}

// One element: head sizes that are no multiple of 4.
template <class Cache>
void weigh_one(const AttentionTile& tile, int query, int element) {
  const float* weights = tile.scores + query * kSplitPositions;
  float sum = 0.0F;
  for (int p = 0; p < tile.counts[query]; ++p) {
    std::uint32_t word = 0;
    __builtin_memcpy(&word, value_words<Cache>(tile, p / Cache::kPerStep, element), 4);
    sum = __builtin_fmaf(Cache::scalar(word, p % Cache::kPerStep), weights[p], sum);
  }
  tile.out[query * tile.value_dim + element] = sum;
}

template <class Cache>
void attend(const AttentionTile& tile) {
  score<Cache>(tile, groups_of(tile));
  for (int q = 0; q < tile.query_count; ++q) softmax(tile, q);
  for (int query = 0; query < tile.query_count; query += kQueriesPerPass) {
    int first = 0;
    for (; first + 16 <= tile.value_dim; first += 16) weigh_queries<Cache, 4>(tile, query, first);
    for (; first + 4 <= tile.value_dim; first += 4) weigh_queries<Cache, 1>(tile, query, first);
    for (; first < tile.value_dim; ++first) {
      const int end = query + kQueriesPerPass;
      for (int q = query; q < end && q < tile.query_count; ++q) weigh_one<Cache>(tile, q, first);
    }
  }
}

void fold(float* max, float* sum, float* out, float split_max, float split_sum,
          const float* split_out, int dim) {
  const float joint = split_max > *max ? split_max : *max;
  const float old_weight = vgetq_lane_f32(exp(vdupq_n_f32(*max - joint)), 0);
  const float new_weight = vgetq_lane_f32(exp(vdupq_n_f32(split_max - joint)), 0);
  *max = joint;
  *sum = *sum * old_weight + split_sum * new_weight;
  int i = 0;
  for (; i + 4 <= dim; i += 4) {
    const float32x4_t old_part = vmulq_n_f32(vld1q_f32(out + i), old_weight);
    vst1q_f32(out + i, vfmaq_n_f32(old_part, vld1q_f32(split_out + i), new_weight));
  }
  for (; i < dim; ++i) out[i] = __builtin_fmaf(split_out[i], new_weight, out[i] * old_weight);
}

}  // namespace

void add_neon_attention(CpuKernels* table) {
  table->attention_f32 = attend<F32Cache>;
  table->attention_bf16 = attend<Bf16Cache>;
  table->attention_fold = fold;
}

}  // namespace kun
