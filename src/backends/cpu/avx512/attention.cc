// Attention over one split for AVX-512. Scores: 16 positions to a vector, query elements broadcast,
// so a key is read once for all queries of a tile. Values: elements in the lanes, weights
// broadcast. A BF16 step takes a pair of elements (or positions), an F32 step one; both are 4 bytes
// wide, so the two caches share all code but the product.
#include "backends/cpu/avx512/exp.h"
#include "backends/cpu/avx512/parts.h"

namespace kun {
namespace {

using AliasedInt = int __attribute__((may_alias));
using AliasedVector = __m256i __attribute__((may_alias));

constexpr int kQueriesPerPass = 6;

__m512i broadcast(const void* data) {
  return _mm512_set1_epi32(*static_cast<const AliasedInt*>(data));
}

__mmask16 mask_of(int left) {
  return static_cast<__mmask16>(left >= 16 ? 0xFFFFU : left <= 0 ? 0U : (1U << left) - 1U);
}

struct F32Cache {
  static constexpr int kPositionsPerStep = 1;
  static __m512 multiply_add(__m512i a, __m512i b, __m512 sum) {
    return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
  static void store_weights(float* weights, int group, __m512 value) {
    _mm512_storeu_ps(weights + group * kGroupPositions, value);
  }
};

struct Bf16Cache {
  static constexpr int kPositionsPerStep = 2;
  static __m512 multiply_add(__m512i a, __m512i b, __m512 sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  // Over the scores of groups already read: half their size.
  static void store_weights(float* weights, int group, __m512 value) {
    const __m256bh narrow = _mm512_cvtneps_pbh(value);
    *reinterpret_cast<AliasedVector*>(weights + group * kGroupPositions / 2) =
        reinterpret_cast<__m256i>(narrow);
  }
};

// Walks through what the next tile will read, a few lines at every step of this one: a burst would
// stall the loads beside it.
class Prefetcher {
 public:
  Prefetcher(const AttentionTile& tile, int steps)
      : piece_(tile.next),
        end_(tile.next + 2 * tile.next_groups),
        piece_bytes_(tile.next_bytes),
        lines_per_step_(tile.next_groups == 0
                            ? 0
                            : (2 * tile.next_groups * (tile.next_bytes / 64) - 1) / steps + 1) {}

  void step() {
    for (int i = 0; i < lines_per_step_ && piece_ != end_; ++i) {
      _mm_prefetch(*piece_ + offset_, _MM_HINT_T1);
      offset_ += 64;
      if (offset_ < piece_bytes_) continue;
      offset_ = 0;
      ++piece_;
    }
  }

 private:
  const std::byte* const* piece_;
  const std::byte* const* end_;
  int piece_bytes_;
  int lines_per_step_;
  int offset_ = 0;
};

// For all passes but the first over the same memory.
struct NoPrefetcher {
  static void step() {}
};

// --- Scores
// ---------------------------------------------------------------------------------------

template <class Cache, int kQueries, int kGroups, class Prefetch>
void score_groups(const AttentionTile& tile, int query, int group, Prefetch& prefetch) {
  constexpr int kElements = Cache::kPositionsPerStep;
  const int steps = tile.dim / kElements;
  const auto* q = static_cast<const std::byte*>(tile.queries) + std::int64_t{query} * steps * 4;
  __m512 sums[kQueries][kGroups] = {};
  Prefetch local = prefetch;  // in registers
  for (int i = 0; i < steps; ++i) {
    local.step();
    __m512i keys[kGroups];
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      keys[g] = _mm512_loadu_si512(tile.keys[group + g] + std::int64_t{i} * 64);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      const __m512i element = broadcast(q + (n * steps + i) * 4);
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) {
        sums[n][g] = Cache::multiply_add(keys[g], element, sums[n][g]);
      }
    }
  }
  prefetch = local;
  const __m512 scale = _mm512_set1_ps(tile.scale);
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    float* out = tile.scores + (query + n) * kSplitPositions + group * kGroupPositions;
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      _mm512_storeu_ps(out + g * kGroupPositions, _mm512_mul_ps(sums[n][g], scale));
    }
  }
}

template <class Cache, int kGroups, class Prefetch>
void score_queries(const AttentionTile& tile, int query, int group, Prefetch& prefetch) {
  switch (tile.query_count - query) {
    case 1: score_groups<Cache, 1, kGroups>(tile, query, group, prefetch); return;
    case 2: score_groups<Cache, 2, kGroups>(tile, query, group, prefetch); return;
    case 3: score_groups<Cache, 3, kGroups>(tile, query, group, prefetch); return;
    case 4: score_groups<Cache, 4, kGroups>(tile, query, group, prefetch); return;
    case 5: score_groups<Cache, 5, kGroups>(tile, query, group, prefetch); return;
    default: score_groups<Cache, 6, kGroups>(tile, query, group, prefetch); return;
  }
}

template <class Cache, int kGroups>
void score_all(const AttentionTile& tile, int group, Prefetcher& prefetch) {
  score_queries<Cache, kGroups>(tile, 0, group, prefetch);
  NoPrefetcher none;
  for (int query = kQueriesPerPass; query < tile.query_count; query += kQueriesPerPass) {
    score_queries<Cache, kGroups>(tile, query, group, none);
  }
}

template <class Cache>
void score(const AttentionTile& tile, int groups, Prefetcher& prefetch) {
  int group = 0;
  for (; group + 4 <= groups; group += 4) score_all<Cache, 4>(tile, group, prefetch);
  for (; group + 2 <= groups; group += 2) score_all<Cache, 2>(tile, group, prefetch);
  if (group < groups) score_all<Cache, 1>(tile, group, prefetch);
}

// --- Softmax
// --------------------------------------------------------------------------------------

template <class Cache>
void softmax(const AttentionTile& tile, int query) {
  const int count = tile.counts[query];
  float* row = tile.scores + query * kSplitPositions;
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 largest = lowest;
  for (int p = 0; p < count; p += kGroupPositions) {
    // A NaN score does not become the maximum; it makes its own weight NaN below.
    largest = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, mask_of(count - p), row + p), largest);
  }
  const float max = _mm512_reduce_max_ps(largest);
  const __m512 shift = _mm512_set1_ps(max);
  __m512 sum = _mm512_setzero_ps();
  for (int p = 0; p < count; p += kGroupPositions) {
    const __mmask16 mask = mask_of(count - p);
    const __m512 score = _mm512_maskz_loadu_ps(mask, row + p);
    const __m512 weight = _mm512_maskz_mov_ps(mask, exp(_mm512_sub_ps(score, shift)));
    sum = _mm512_add_ps(sum, weight);
    Cache::store_weights(row, p / kGroupPositions, weight);
  }
  tile.max[query] = max;
  tile.sum[query] = _mm512_reduce_add_ps(sum);
}

// --- Values
// ---------------------------------------------------------------------------------------

// Values of step `step` of the split, elements [first, first + 16).
template <class Cache>
__m512i load_values(const AttentionTile& tile, int step, int first, __mmask16 mask) {
  constexpr int kStepsPerGroup = kGroupPositions / Cache::kPositionsPerStep;
  const std::byte* row =
      tile.values[step / kStepsPerGroup] + (step % kStepsPerGroup * tile.value_stride + first) * 4;
  return _mm512_maskz_loadu_epi32(mask, row);
}

// The steps past those all queries of a pass share, the last of which may be half a pair: what lies
// behind it is not this query's to touch, even with weight zero.
template <class Cache, int kVectors>
[[gnu::always_inline]] inline void finish_query(const AttentionTile& tile, int query,
                                                int first_step, int first, __mmask16 last,
                                                __m512 (&sums)[kVectors]) {
  const int count = tile.counts[query];
  const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
  const int steps = (count + Cache::kPositionsPerStep - 1) / Cache::kPositionsPerStep;
  for (int step = first_step; step < steps; ++step) {
    const bool half = (step + 1) * Cache::kPositionsPerStep > count;
    const __m512i keep = _mm512_set1_epi32(half ? 0xFFFF : -1);
    const __m512i weight = broadcast(weights + step * 4);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 == kVectors ? last : static_cast<__mmask16>(0xFFFF);
      const __m512i values = load_values<Cache>(tile, step, first + 16 * v, mask);
      sums[v] = Cache::multiply_add(_mm512_and_si512(values, keep), weight, sums[v]);
    }
  }
}

template <class Cache, int kQueries, int kVectors, class Prefetch>
void weigh_elements(const AttentionTile& tile, int query, int first, Prefetch& prefetch) {
  const __mmask16 last = mask_of(tile.value_dim - first - 16 * (kVectors - 1));
  int common = tile.counts[query];
  for (int n = 1; n < kQueries; ++n) {
    if (tile.counts[query + n] < common) common = tile.counts[query + n];
  }
  const int steps = common / Cache::kPositionsPerStep;
  const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
  __m512 sums[kQueries][kVectors] = {};
  Prefetch local = prefetch;  // in registers
  for (int step = 0; step < steps; ++step) {
    local.step();
    __m512i values[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 == kVectors ? last : static_cast<__mmask16>(0xFFFF);
      values[v] = load_values<Cache>(tile, step, first + 16 * v, mask);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      const __m512i weight = broadcast(weights + (n * kSplitPositions + step) * 4);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        sums[n][v] = Cache::multiply_add(values[v], weight, sums[n][v]);
      }
    }
  }
  prefetch = local;
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    finish_query<Cache, kVectors>(tile, query + n, steps, first, last, sums[n]);
    float* out = tile.out + (query + n) * tile.value_dim + first;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 == kVectors ? last : static_cast<__mmask16>(0xFFFF);
      _mm512_mask_storeu_ps(out + 16 * v, mask, sums[n][v]);
    }
  }
}

template <class Cache, int kVectors, class Prefetch>
void weigh_queries(const AttentionTile& tile, int query, int first, Prefetch& prefetch) {
  switch (tile.query_count - query) {
    case 1: weigh_elements<Cache, 1, kVectors>(tile, query, first, prefetch); return;
    case 2: weigh_elements<Cache, 2, kVectors>(tile, query, first, prefetch); return;
    case 3: weigh_elements<Cache, 3, kVectors>(tile, query, first, prefetch); return;
    case 4: weigh_elements<Cache, 4, kVectors>(tile, query, first, prefetch); return;
    case 5: weigh_elements<Cache, 5, kVectors>(tile, query, first, prefetch); return;
    default: weigh_elements<Cache, 6, kVectors>(tile, query, first, prefetch); return;
  }
}

template <class Cache, class Prefetch>
void weigh(const AttentionTile& tile, int query, Prefetch& prefetch) {
  for (int first = 0; first < tile.value_dim;) {
    const bool wide = tile.value_dim - first >= 64;
    if (wide) {
      weigh_queries<Cache, 4>(tile, query, first, prefetch);
    } else {
      weigh_queries<Cache, 1>(tile, query, first, prefetch);
    }
    first += wide ? 64 : 16;
  }
}

template <class Cache>
void attend(const AttentionTile& tile) {
  int longest = 0;
  for (int q = 0; q < tile.query_count; ++q) {
    if (tile.counts[q] > longest) longest = tile.counts[q];
  }
  const int groups = (longest + kGroupPositions - 1) / kGroupPositions;
  // Steps of the first pass over the keys and of the first over the values.
  Prefetcher prefetch(
      tile, (groups + 3) / 4 * (tile.dim / 2) + (longest + 1) / 2 * ((tile.value_dim + 63) / 64));
  score<Cache>(tile, groups, prefetch);
  for (int q = 0; q < tile.query_count; ++q) softmax<Cache>(tile, q);
  weigh<Cache>(tile, 0, prefetch);
  NoPrefetcher none;
  for (int query = kQueriesPerPass; query < tile.query_count; query += kQueriesPerPass) {
    weigh<Cache>(tile, query, none);
  }
}

void fold(float* max, float* sum, float* out, float split_max, float split_sum,
          const float* split_out, int dim) {
  const float joint = split_max > *max ? split_max : *max;
  const __m512 old_weight = exp(_mm512_set1_ps(*max - joint));
  const __m512 new_weight = exp(_mm512_set1_ps(split_max - joint));
  *max = joint;
  *sum = *sum * _mm512_cvtss_f32(old_weight) + split_sum * _mm512_cvtss_f32(new_weight);
  for (int i = 0; i < dim; i += 16) {
    const __mmask16 mask = mask_of(dim - i);
    const __m512 old_part = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, out + i), old_weight);
    const __m512 part = _mm512_maskz_loadu_ps(mask, split_out + i);
    _mm512_mask_storeu_ps(out + i, mask, _mm512_fmadd_ps(part, new_weight, old_part));
  }
}

}  // namespace

void add_avx512_attention(CpuKernels* table) {
  table->attention_f32 = attend<F32Cache>;
  table->attention_bf16 = attend<Bf16Cache>;
  table->attention_fold = fold;
}

}  // namespace kun
