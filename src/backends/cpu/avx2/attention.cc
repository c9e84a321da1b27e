// Attention over one split for AVX2. As the AVX-512 version, 8 lanes at a time, with a BF16 cache
// widened to F32 in registers: queries and weights are not rounded.
#include "backends/cpu/avx2/exp.h"
#include "backends/cpu/avx2/parts.h"

namespace kun {
namespace {

constexpr int kQueriesPerPass = 4;
constexpr int kVectors = 2;  // of 8 positions in a group; of 8 elements in a pass over the values

__m256i mask_of(int left) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

__m256i load(const std::byte* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

struct F32Cache {
  static constexpr int kPerStep = 1;  // elements, or positions, in 4 bytes
  static __m256 part(__m256i word, int) { return _mm256_castsi256_ps(word); }
};

struct Bf16Cache {
  static constexpr int kPerStep = 2;
  static __m256 part(__m256i pair, int which) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    return _mm256_castsi256_ps(which == 0 ? _mm256_slli_epi32(pair, 16)
                                          : _mm256_and_si256(pair, high));
  }
};

// --- Scores
// ---------------------------------------------------------------------------------------

template <class Cache, int kQueries>
void score_group(const AttentionTile& tile, int query, int group) {
  const float* q = static_cast<const float*>(tile.queries) + std::int64_t{query} * tile.dim;
  __m256 sums[kQueries][kVectors] = {};
  for (int i = 0; i < tile.dim / Cache::kPerStep; ++i) {
    const std::byte* words = tile.keys[group] + std::int64_t{i} * 64;
    const __m256i keys[kVectors] = {load(words), load(words + 32)};
#pragma GCC unroll 8
    for (int k = 0; k < Cache::kPerStep; ++k) {
      const __m256 low = Cache::part(keys[0], k);
      const __m256 high = Cache::part(keys[1], k);
#pragma GCC unroll 8
      for (int n = 0; n < kQueries; ++n) {
        const __m256 element = _mm256_broadcast_ss(q + n * tile.dim + i * Cache::kPerStep + k);
        sums[n][0] = _mm256_fmadd_ps(low, element, sums[n][0]);
        sums[n][1] = _mm256_fmadd_ps(high, element, sums[n][1]);
      }
    }
  }
  const __m256 scale = _mm256_set1_ps(tile.scale);
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    float* out = tile.scores + (query + n) * kSplitPositions + group * kGroupPositions;
    _mm256_storeu_ps(out, _mm256_mul_ps(sums[n][0], scale));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(sums[n][1], scale));
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

// --- Softmax
// --------------------------------------------------------------------------------------

float largest_lane(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

float sum_lanes(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

void softmax(const AttentionTile& tile, int query) {
  const int count = tile.counts[query];
  float* row = tile.scores + query * kSplitPositions;
  const __m256 lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 largest = lowest;
  for (int p = 0; p < count; p += 8) {
    // A NaN score does not become the maximum; it makes its own weight NaN below.
    const __m256 mask = _mm256_castsi256_ps(mask_of(count - p));
    largest = _mm256_max_ps(_mm256_blendv_ps(lowest, _mm256_loadu_ps(row + p), mask), largest);
  }
  const float max = largest_lane(largest);
  const __m256 shift = _mm256_set1_ps(max);
  __m256 sum = _mm256_setzero_ps();
  for (int p = 0; p < count; p += 8) {
    const __m256 mask = _mm256_castsi256_ps(mask_of(count - p));
    const __m256 score = _mm256_loadu_ps(row + p);
    const __m256 weight = _mm256_and_ps(exp(_mm256_sub_ps(score, shift)), mask);
    sum = _mm256_add_ps(sum, weight);
    _mm256_storeu_ps(row + p, weight);
  }
  tile.max[query] = max;
  tile.sum[query] = sum_lanes(sum);
}

// --- Values
// ---------------------------------------------------------------------------------------

// Elements [first, first + 16) of one 4-byte step of the split.
template <class Cache>
[[gnu::always_inline]] inline void load_values(const AttentionTile& tile, int step, int first,
                                               const __m256i (&masks)[kVectors],
                                               __m256i (&values)[kVectors]) {
  constexpr int kStepsPerGroup = kGroupPositions / Cache::kPerStep;
  const std::byte* row =
      tile.values[step / kStepsPerGroup] + (step % kStepsPerGroup * tile.value_stride + first) * 4;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    values[v] = _mm256_maskload_epi32(reinterpret_cast<const int*>(row + 32 * v), masks[v]);
  }
}

// Positions past those all queries of a pass share; none behind the query's own count is touched.
template <class Cache>
[[gnu::always_inline]] inline void finish_query(const AttentionTile& tile, int query, int position,
                                                int first, const __m256i (&masks)[kVectors],
                                                __m256 (&sums)[kVectors]) {
  const float* weights = tile.scores + query * kSplitPositions;
  for (; position < tile.counts[query]; ++position) {
    __m256i values[kVectors];
    load_values<Cache>(tile, position / Cache::kPerStep, first, masks, values);
    const __m256 weight = _mm256_broadcast_ss(weights + position);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __m256 value = Cache::part(values[v], position % Cache::kPerStep);
      sums[v] = _mm256_fmadd_ps(value, weight, sums[v]);
    }
  }
}

template <class Cache, int kQueries>
void weigh_elements(const AttentionTile& tile, int query, int first) {
  const __m256i masks[kVectors] = {mask_of(tile.value_dim - first),
                                   mask_of(tile.value_dim - first - 8)};
  int common = tile.counts[query];
  for (int n = 1; n < kQueries; ++n) {
    if (tile.counts[query + n] < common) common = tile.counts[query + n];
  }
  const int steps = common / Cache::kPerStep;
  const float* weights = tile.scores + query * kSplitPositions;
  __m256 sums[kQueries][kVectors] = {};
  for (int step = 0; step < steps; ++step) {
    __m256i values[kVectors];
    load_values<Cache>(tile, step, first, masks, values);
#pragma GCC unroll 8
    for (int k = 0; k < Cache::kPerStep; ++k) {
      const __m256 low = Cache::part(values[0], k);
      const __m256 high = Cache::part(values[1], k);
#pragma GCC unroll 8
      for (int n = 0; n < kQueries; ++n) {
        const __m256 weight =
            _mm256_broadcast_ss(weights + n * kSplitPositions + step * Cache::kPerStep + k);
        sums[n][0] = _mm256_fmadd_ps(low, weight, sums[n][0]);
        sums[n][1] = _mm256_fmadd_ps(high, weight, sums[n][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    finish_query<Cache>(tile, query + n, steps * Cache::kPerStep, first, masks, sums[n]);
    float* out = tile.out + (query + n) * tile.value_dim + first;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) _mm256_maskstore_ps(out + 8 * v, masks[v], sums[n][v]);
  }
}

template <class Cache>
void attend(const AttentionTile& tile) {
  int longest = 0;
  for (int q = 0; q < tile.query_count; ++q) {
    if (tile.counts[q] > longest) longest = tile.counts[q];
  }
  score<Cache>(tile, (longest + kGroupPositions - 1) / kGroupPositions);
  for (int q = 0; q < tile.query_count; ++q) softmax(tile, q);
  for (int query = 0; query < tile.query_count; query += kQueriesPerPass) {
    for (int first = 0; first < tile.value_dim; first += 8 * kVectors) {
      switch (tile.query_count - query) {
        case 1: weigh_elements<Cache, 1>(tile, query, first); break;
        case 2: weigh_elements<Cache, 2>(tile, query, first); break;
        case 3: weigh_elements<Cache, 3>(tile, query, first); break;
        default: weigh_elements<Cache, 4>(tile, query, first); break;
      }
    }
  }
}

void fold(float* max, float* sum, float* out, float split_max, float split_sum,
          const float* split_out, int dim) {
  const float joint = split_max > *max ? split_max : *max;
  const __m256 old_weight = exp(_mm256_set1_ps(*max - joint));
  const __m256 new_weight = exp(_mm256_set1_ps(split_max - joint));
  *max = joint;
  *sum = *sum * _mm256_cvtss_f32(old_weight) + split_sum * _mm256_cvtss_f32(new_weight);
  for (int i = 0; i < dim; i += 8) {
    const __m256i mask = mask_of(dim - i);
    const __m256 old_part = _mm256_mul_ps(_mm256_maskload_ps(out + i, mask), old_weight);
    const __m256 part = _mm256_maskload_ps(split_out + i, mask);
    _mm256_maskstore_ps(out + i, mask, _mm256_fmadd_ps(part, new_weight, old_part));
  }
}

}  // namespace

void add_avx2_attention(CpuKernels* table) {
  table->attention_f32 = attend<F32Cache>;
  table->attention_bf16 = attend<Bf16Cache>;
  table->attention_fold = fold;
}

}  // namespace kun
