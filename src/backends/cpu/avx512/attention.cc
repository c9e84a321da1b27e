// Attention over one split for AVX-512. Scores: 16 positions to a vector, parts of a query
// broadcast, so a key is read once for all queries of a tile. Values: elements in the lanes,
// weights broadcast. A step takes 4 bytes of every key, or a few positions of every value; caches
// differ in how many elements or positions these are, in their products, and in what becomes of
// weights.
#include "backends/cpu/avx512/attention_parts.h"
#include "backends/cpu/avx512/parts.h"
#include "backends/cpu/code_scale.h"

namespace kun {
namespace {

constexpr int kQueriesPerPass = 6;

// --- Caches --------------------------------------------------------------------------------------

// What F32 and BF16 have in common: elements (or pairs of them) of 4 bytes, sums of floats.
struct FloatCache {
  using Sum = __m512;
  static constexpr int kValueBytes = 4;  // of an element in a step over the values

  explicit FloatCache(const AttentionTile&) {}

  static __m512 start(int) { return _mm512_setzero_ps(); }
  static __m512i load_keys(const std::byte* words) { return _mm512_loadu_si512(words); }
  static __m512 scores(const AttentionTile& tile, int, int, __m512 sum) {
    return _mm512_mul_ps(sum, _mm512_set1_ps(tile.scale));
  }
  static __m512i load_values(const std::byte* words, __mmask16 mask) {
    return _mm512_maskz_loadu_epi32(mask, words);
  }
  static __m512 result(int, __m512 sum) { return sum; }
};

struct F32Cache : FloatCache {
  static constexpr int kElements = 1;   // of a key in a step
  static constexpr int kPositions = 1;  // of the values in a step

  using FloatCache::FloatCache;

  static void add_elements(__m512& sum, __m512i a, __m512i b) {
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
  }
  static void add_positions(__m512& sum, __m512i a, __m512i b) { add_elements(sum, a, b); }

  static void weigh(const AttentionTile& tile, int query, Prefetcher& prefetch) {
    float* row = tile.scores + query * kSplitPositions;
    softmax(tile, query, prefetch,
            [row](int p, __mmask16, __m512 weight) { _mm512_storeu_ps(row + p, weight); });
  }
};

struct Bf16Cache : FloatCache {
  static constexpr int kElements = 2;
  static constexpr int kPositions = 2;

  using FloatCache::FloatCache;

  static void add_elements(__m512& sum, __m512i a, __m512i b) {
    sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static void add_positions(__m512& sum, __m512i a, __m512i b) { add_elements(sum, a, b); }

  static void weigh(const AttentionTile& tile, int query, Prefetcher& prefetch) {
    weigh_as_bf16(tile, query, prefetch);
  }
};

// Scores are sums of byte products: keys are shifted to unsigned, as VNNI wants one side, and 128
// times a query's sum is taken off at the start. Weights, times the scale of their value, become
// integers of 15 bits relative to the largest of the split, so that values are multiplied as they
// are, in pairs of 16 bits, and all sums are exact: what rounds is each weight, by at most half of
// 1 / 32639 of the largest.
//
// 16 positions take one query of d elements d/4 + d/2 dot products and about 25 other operations:
// 121 at 128, of which 96 are products; measured, these are three quarters of the time.
class Int8Cache {
 public:
  using Sum = __m512i;
  static constexpr int kElements = 4;
  static constexpr int kPositions = 2;
  static constexpr int kValueBytes = 2;

  explicit Int8Cache(const AttentionTile& tile) {
    for (int q = 0; q < tile.query_count; ++q) offsets_[q] = offset_of(tile, q);
  }

  __m512i start(int query) const { return _mm512_set1_epi32(offsets_[query]); }
  static __m512i load_keys(const std::byte* words) {
    return _mm512_xor_si512(_mm512_loadu_si512(words), _mm512_set1_epi8(-128));
  }
  // Sums of four products of bytes, unsigned by signed, and of two products of 16 bits. In
  // assembly: with the intrinsics GCC copies every accumulator before it adds, and spills.
  static void add_elements(__m512i& sum, __m512i a, __m512i b) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
  static void add_positions(__m512i& sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  }
  static __m512 scores(const AttentionTile& tile, int query, int group, __m512i sum) {
    const __m512 scale = _mm512_set1_ps(tile.scale * tile.query_scales[query]);
    const __m512 factor = _mm512_mul_ps(scales_of(tile.keys[group], tile.dim), scale);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor);
  }

  // 16 elements of a pair of positions as pairs of 16 bits. Past the head's end it reads what is
  // never stored: the next pair, or the scales of the piece.
  static __m512i load_values(const std::byte* pairs, __mmask16) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs)));
  }
  __m512 result(int query, __m512i sum) const {
    return _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(units_[query]));
  }

  // Leaves 16-bit weights where the scores were: over those already read, as they are half their
  // size.
  void weigh(const AttentionTile& tile, int query, Prefetcher& prefetch) {
    float* row = tile.scores + query * kSplitPositions;
    // None is negative, so their bits order as they do, NaN last.
    __m512i bits = _mm512_setzero_si512();
    softmax(tile, query, prefetch, [&](int p, __mmask16 mask, __m512 weight) {
      const __m512 scales = scales_of(tile.values[p / kGroupPositions], tile.value_stride);
      const __m512 scaled = _mm512_maskz_mul_ps(mask, weight, scales);
      bits = _mm512_max_epu32(_mm512_castps_si512(scaled), bits);
      _mm512_storeu_ps(row + p, scaled);
    });
    const auto largest_bits = static_cast<int>(_mm512_reduce_max_epu32(bits));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(largest_bits)));
    const __m512 inverse = _mm512_set1_ps(largest >= kWeightFloor ? kWeightMax / largest : 0.0F);
    for (int p = 0; p < tile.counts[query]; p += kGroupPositions) {
      const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(row + p), inverse));
      *reinterpret_cast<AliasedVector*>(row + p / 2) = _mm512_cvtepi32_epi16(codes);
    }
    units_[query] = largest * (1.0F / kWeightMax);
  }

 private:
  static __m512 scales_of(const std::byte* piece, std::int64_t elements) {
    return _mm512_loadu_ps(piece + kGroupPositions * elements);
  }

  // -128 times the sum of a query's codes; dim is a multiple of 4.
  static int offset_of(const AttentionTile& tile, int query) {
    const auto* codes = static_cast<const std::int8_t*>(tile.queries) + query * tile.dim;
    __m512i sums = _mm512_setzero_si512();
    for (int i = 0; i < tile.dim; i += 64) {
      const __mmask16 mask = mask_of((tile.dim - i) / 4);
      sums =
          _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), _mm512_maskz_loadu_epi32(mask, codes + i));
    }
    return -128 * _mm512_reduce_add_epi32(sums);
  }

  int offsets_[kQueriesMax];  // where a query's sums start
  float units_[kQueriesMax];  // what a weight of 1 is worth
};

// --- Scores --------------------------------------------------------------------------------------

template <int kQueries, int kGroups, class Cache, class Prefetch>
void score_groups(const AttentionTile& tile, const Cache& cache, int query, int group,
                  Prefetch& prefetch) {
  const int steps = tile.dim / Cache::kElements;
  const auto* q = static_cast<const std::byte*>(tile.queries) + std::int64_t{query} * steps * 4;
  typename Cache::Sum sums[kQueries][kGroups];
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) sums[n][g] = cache.start(query + n);
  }
  Prefetch local = prefetch;  // in registers
  for (int i = 0; i < steps; ++i) {
    local.step();
    __m512i keys[kGroups];
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      keys[g] = Cache::load_keys(tile.keys[group + g] + std::int64_t{i} * 64);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      const __m512i elements = broadcast(q + (n * steps + i) * 4);
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; ++g) Cache::add_elements(sums[n][g], keys[g], elements);
    }
  }
  prefetch = local;
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    float* out = tile.scores + (query + n) * kSplitPositions + group * kGroupPositions;
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; ++g) {
      _mm512_storeu_ps(out + g * kGroupPositions,
                       Cache::scores(tile, query + n, group + g, sums[n][g]));
    }
  }
}

template <int kGroups, class Cache, class Prefetch>
void score_queries(const AttentionTile& tile, const Cache& cache, int query, int group,
                   Prefetch& prefetch) {
  switch (tile.query_count - query) {
    case 1: return score_groups<1, kGroups>(tile, cache, query, group, prefetch);
    case 2: return score_groups<2, kGroups>(tile, cache, query, group, prefetch);
    case 3: return score_groups<3, kGroups>(tile, cache, query, group, prefetch);
    case 4: return score_groups<4, kGroups>(tile, cache, query, group, prefetch);
    case 5: return score_groups<5, kGroups>(tile, cache, query, group, prefetch);
    default: return score_groups<6, kGroups>(tile, cache, query, group, prefetch);
  }
}

template <int kGroups, class Cache>
void score_all(const AttentionTile& tile, const Cache& cache, int group, Prefetcher& prefetch) {
  score_queries<kGroups>(tile, cache, 0, group, prefetch);
  NoPrefetcher none;
  for (int query = kQueriesPerPass; query < tile.query_count; query += kQueriesPerPass) {
    score_queries<kGroups>(tile, cache, query, group, none);
  }
}

template <class Cache>
void score(const AttentionTile& tile, const Cache& cache, int groups, Prefetcher& prefetch) {
  int group = 0;
  for (; group + 4 <= groups; group += 4) score_all<4>(tile, cache, group, prefetch);
  for (; group + 2 <= groups; group += 2) score_all<2>(tile, cache, group, prefetch);
  if (group < groups) score_all<1>(tile, cache, group, prefetch);
}

// --- Values --------------------------------------------------------------------------------------

// Where step `step` of the split has element `first` of its values.
template <class Cache>
const std::byte* value_words(const AttentionTile& tile, int step, int first) {
  constexpr int kStepsPerGroup = kGroupPositions / Cache::kPositions;
  return tile.values[step / kStepsPerGroup] +
         (step % kStepsPerGroup * tile.value_stride + first) * Cache::kValueBytes;
}

// The steps past those all queries of a pass share, the last of which may be half a pair: what lies
// behind it is not this query's to touch, even with weight zero.
template <class Cache, int kVectors>
[[gnu::always_inline]] inline void finish_query(const AttentionTile& tile, int query,
                                                int first_step, int first, __mmask16 last,
                                                typename Cache::Sum (&sums)[kVectors]) {
  const int count = tile.counts[query];
  const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
  const int steps = (count + Cache::kPositions - 1) / Cache::kPositions;
  for (int step = first_step; step < steps; ++step) {
    const bool half = (step + 1) * Cache::kPositions > count;
    const __m512i keep = _mm512_set1_epi32(half ? 0xFFFF : -1);
    const __m512i weight = broadcast(weights + step * 4);
    const std::byte* words = value_words<Cache>(tile, step, first);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 == kVectors ? last : static_cast<__mmask16>(0xFFFF);
      const __m512i values = Cache::load_values(words + 16 * v * Cache::kValueBytes, mask);
      Cache::add_positions(sums[v], _mm512_and_si512(values, keep), weight);
    }
  }
}

template <int kQueries, int kVectors, class Cache, class Prefetch>
void weigh_elements(const AttentionTile& tile, const Cache& cache, int query, int first,
                    Prefetch& prefetch) {
  const __mmask16 last = mask_of(tile.value_dim - first - 16 * (kVectors - 1));
  int common = tile.counts[query];
  for (int n = 1; n < kQueries; ++n) {
    if (tile.counts[query + n] < common) common = tile.counts[query + n];
  }
  const int steps = common / Cache::kPositions;
  const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
  typename Cache::Sum sums[kQueries][kVectors] = {};
  Prefetch local = prefetch;  // in registers
  for (int step = 0; step < steps; ++step) {
    local.step();
    const std::byte* words = value_words<Cache>(tile, step, first);
    __m512i values[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      const __mmask16 mask = v + 1 == kVectors ? last : static_cast<__mmask16>(0xFFFF);
      values[v] = Cache::load_values(words + 16 * v * Cache::kValueBytes, mask);
    }
#pragma GCC unroll 8
    for (int n = 0; n < kQueries; ++n) {
      const __m512i weight = broadcast(weights + (n * kSplitPositions + step) * 4);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) Cache::add_positions(sums[n][v], values[v], weight);
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
      _mm512_mask_storeu_ps(out + 16 * v, mask, cache.result(query + n, sums[n][v]));
    }
  }
}

template <int kVectors, class Cache, class Prefetch>
void weigh_queries(const AttentionTile& tile, const Cache& cache, int query, int first,
                   Prefetch& prefetch) {
  switch (tile.query_count - query) {
    case 1: return weigh_elements<1, kVectors>(tile, cache, query, first, prefetch);
    case 2: return weigh_elements<2, kVectors>(tile, cache, query, first, prefetch);
    case 3: return weigh_elements<3, kVectors>(tile, cache, query, first, prefetch);
    case 4: return weigh_elements<4, kVectors>(tile, cache, query, first, prefetch);
    case 5: return weigh_elements<5, kVectors>(tile, cache, query, first, prefetch);
    default: return weigh_elements<6, kVectors>(tile, cache, query, first, prefetch);
  }
}

template <class Cache, class Prefetch>
void weigh(const AttentionTile& tile, const Cache& cache, int query, Prefetch& prefetch) {
  int first = 0;
  for (; first + 64 <= tile.value_dim; first += 64) {
    weigh_queries<4>(tile, cache, query, first, prefetch);
  }
  for (; first < tile.value_dim; first += 16) {
    weigh_queries<1>(tile, cache, query, first, prefetch);
  }
}

template <class Cache>
void attend(const AttentionTile& tile) {
  const int groups = groups_of(tile);
  // Steps of the first pass over the keys, of the softmax, and of the first over the values.
  Prefetcher prefetch(
      tile, (groups + 3) / 4 * (tile.dim / Cache::kElements) + groups * tile.query_count +
                groups * (kGroupPositions / Cache::kPositions) * ((tile.value_dim + 63) / 64));
  Cache cache(tile);
  score(tile, cache, groups, prefetch);
  for (int q = 0; q < tile.query_count; ++q) cache.weigh(tile, q, prefetch);
  weigh(tile, cache, 0, prefetch);
  NoPrefetcher none;
  for (int query = kQueriesPerPass; query < tile.query_count; query += kQueriesPerPass) {
    weigh(tile, cache, query, none);
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

// --- The codes of heads in an INT8 cache ---------------------------------------------------------

float quantize_head(const float* in, int size, std::int8_t* codes) {
  const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
  __m512i largest_bits = _mm512_setzero_si512();
  for (int i = 0; i < size; i += 16) {
    const __m512i bits = _mm512_maskz_loadu_epi32(mask_of(size - i), in + i);
    largest_bits = _mm512_max_epi32(largest_bits, _mm512_and_si512(bits, magnitude));
  }
  const CodeScale by =
      code_scale(static_cast<std::uint32_t>(_mm512_reduce_max_epi32(largest_bits)));
  const __m512 inverse = _mm512_set1_ps(by.inverse);
  for (int i = 0; i < size; i += 16) {
    const __mmask16 mask = mask_of(size - i);
    const __m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, in + i), inverse);
    const auto keep = static_cast<__mmask16>(by.is_zero ? 0 : mask);
    _mm512_mask_cvtepi32_storeu_epi8(codes + i, mask, _mm512_maskz_cvtps_epi32(keep, scaled));
  }
  return by.scale;
}

}  // namespace

void add_avx512_attention(CpuKernels* table) {
  table->attention_f32 = attend<F32Cache>;
  table->attention_bf16 = attend<Bf16Cache>;
  table->attention_int8 = attend<Int8Cache>;
  table->attention_fold = fold;
  table->quantize_head = quantize_head;
}

}  // namespace kun
