// Attention over one split for AVX2. As the AVX-512 version, 8 lanes at a time; a step over a BF16
// cache is two products, as its halves are widened to F32 in registers: queries and weights are not
// rounded.
#include "backends/cpu/avx2/exp.h"
#include "backends/cpu/avx2/parts.h"
#include "backends/cpu/code_scale.h"

namespace kun {
namespace {

using AliasedInt = int __attribute__((may_alias));

constexpr int kQueriesPerPass = 4;
constexpr int kVectors = 2;  // of 8 positions in a group; of 8 elements in a pass over the values

__m256i mask_of(int left) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(left), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

__m256i load(const std::byte* data) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data));
}

// --- Softmax -------------------------------------------------------------------------------------

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

// Calls keep(position, mask, weights) for 8 positions at a time; weights past the count are 0.
template <class Keep>
[[gnu::always_inline]] inline void softmax(const AttentionTile& tile, int query, Keep keep) {
  const int count = tile.counts[query];
  const float* row = tile.scores + query * kSplitPositions;
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
    keep(p, mask, weight);
  }
  tile.max[query] = max;
  tile.sum[query] = sum_lanes(sum);
}

// --- Caches --------------------------------------------------------------------------------------

// What F32 and BF16 have in common: queries, weights and sums are floats.
struct FloatCache {
  using Vector = __m256;
  using Keys = __m256;
  static constexpr int kValueBytes = 4;  // of an element in a step over the values

  static __m256 broadcast(const std::byte* data) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(data));
  }
  static void add_elements(__m256& sum, __m256 keys, __m256 element) {
    sum = _mm256_fmadd_ps(keys, element, sum);
  }
  static __m256 scores(const AttentionTile& tile, int, const std::byte*, int, __m256 sum) {
    return _mm256_mul_ps(sum, _mm256_set1_ps(tile.scale));
  }
  static void weigh(const AttentionTile& tile, int query) {
    float* row = tile.scores + query * kSplitPositions;
    softmax(tile, query,
            [row](int p, __m256, __m256 weight) { _mm256_storeu_ps(row + p, weight); });
  }
  static __m256i load_values(const std::byte* words, __m256i mask) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(words), mask);
  }
  static void add_positions(__m256& sum, __m256 values, __m256 weight) {
    sum = _mm256_fmadd_ps(values, weight, sum);
  }
  static __m256 result(int, __m256 sum) { return sum; }
};

struct F32Cache : FloatCache {
  static constexpr int kElements = 1;   // of a key in a step
  static constexpr int kPositions = 1;  // of the values in a step
  static constexpr int kParts = 1;      // products of a step
  static __m256 keys(__m256i words, int) { return _mm256_castsi256_ps(words); }
  static __m256 values(__m256i words, int) { return _mm256_castsi256_ps(words); }
};

struct Bf16Cache : FloatCache {
  static constexpr int kElements = 2;
  static constexpr int kPositions = 2;
  static constexpr int kParts = 2;
  static __m256 keys(__m256i pairs, int part) {
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
    return _mm256_castsi256_ps(part == 0 ? _mm256_slli_epi32(pairs, 16)
                                         : _mm256_and_si256(pairs, high));
  }
  static __m256 values(__m256i pairs, int part) { return keys(pairs, part); }
};

// As the AVX-512 version, with the sign of a key moved to the query where bytes are multiplied: a
// sum of two such products fits 16 bits.
class Int8Cache {
 public:
  using Vector = __m256i;
  struct Keys {
    __m256i sizes;
    __m256i signs;
  };
  static constexpr int kElements = 4;
  static constexpr int kPositions = 2;
  static constexpr int kParts = 1;
  static constexpr int kValueBytes = 2;

  static __m256i broadcast(const std::byte* data) {
    return _mm256_set1_epi32(*reinterpret_cast<const AliasedInt*>(data));
  }

  static Keys keys(__m256i words, int) { return {_mm256_abs_epi8(words), words}; }
  static void add_elements(__m256i& sum, Keys keys, __m256i elements) {
    const __m256i products =
        _mm256_maddubs_epi16(keys.sizes, _mm256_sign_epi8(elements, keys.signs));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
  }
  static __m256 scores(const AttentionTile& tile, int query, const std::byte* piece, int vector,
                       __m256i sum) {
    const __m256 scale = _mm256_set1_ps(tile.scale * tile.query_scales[query]);
    const float* scales = scales_of(piece, tile.dim) + 8 * vector;
    return _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(_mm256_loadu_ps(scales), scale));
  }

  // Leaves 16-bit weights where the scores were: over those already read, as they are half their
  // size.
  void weigh(const AttentionTile& tile, int query) {
    float* row = tile.scores + query * kSplitPositions;
    __m256 largest_lanes = _mm256_setzero_ps();
    __m256 poison = _mm256_setzero_ps();  // 0, or NaN where a weight is
    softmax(tile, query, [&](int p, __m256 mask, __m256 weight) {
      const float* scales =
          scales_of(tile.values[p / kGroupPositions], tile.value_stride) + p % kGroupPositions;
      const __m256 scaled = _mm256_and_ps(_mm256_mul_ps(weight, _mm256_loadu_ps(scales)), mask);
      largest_lanes = _mm256_max_ps(scaled, largest_lanes);
      poison = _mm256_fmadd_ps(scaled, _mm256_setzero_ps(), poison);
      _mm256_storeu_ps(row + p, scaled);
    });
    const float largest = largest_lane(largest_lanes) + sum_lanes(poison);
    const __m256 inverse = _mm256_set1_ps(largest >= kWeightFloor ? kWeightMax / largest : 0.0F);
    for (int p = 0; p < tile.counts[query]; p += 8) {
      const __m256i codes = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(row + p), inverse));
      const __m128i words =
          _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(row + p / 2), words);
    }
    units_[query] = largest * (1.0F / kWeightMax);
  }

  // 8 elements of a pair of positions as pairs of 16 bits. Past the head's end it reads what is
  // never stored: the next pair, or the scales of the piece.
  static __m256i load_values(const std::byte* pairs, __m256i) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pairs)));
  }
  static __m256i values(__m256i pairs, int) { return pairs; }
  static void add_positions(__m256i& sum, __m256i values, __m256i weights) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(values, weights));
  }
  __m256 result(int query, __m256i sum) const {
    return _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(units_[query]));
  }

 private:
  static const float* scales_of(const std::byte* piece, std::int64_t elements) {
    return reinterpret_cast<const float*>(piece + kGroupPositions * elements);
  }

  float units_[kQueriesMax];  // what a weight of 1 is worth
};

// --- Scores --------------------------------------------------------------------------------------

template <int kQueries, class Cache>
void score_group(const AttentionTile& tile, int query, int group) {
  const int steps = tile.dim / Cache::kElements;
  const int parts = steps * Cache::kParts;  // of a query, 4 bytes each
  const auto* q = static_cast<const std::byte*>(tile.queries) + std::int64_t{query} * parts * 4;
  typename Cache::Vector sums[kQueries][kVectors] = {};
  for (int i = 0; i < steps; ++i) {
    const std::byte* words = tile.keys[group] + std::int64_t{i} * 64;
    const __m256i both[kVectors] = {load(words), load(words + 32)};
#pragma GCC unroll 8
    for (int k = 0; k < Cache::kParts; ++k) {
      const typename Cache::Keys keys[kVectors] = {Cache::keys(both[0], k),
                                                   Cache::keys(both[1], k)};
#pragma GCC unroll 8
      for (int n = 0; n < kQueries; ++n) {
        const auto part = Cache::broadcast(q + (n * parts + i * Cache::kParts + k) * 4);
        Cache::add_elements(sums[n][0], keys[0], part);
        Cache::add_elements(sums[n][1], keys[1], part);
      }
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    float* out = tile.scores + (query + n) * kSplitPositions + group * kGroupPositions;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      _mm256_storeu_ps(out + 8 * v,
                       Cache::scores(tile, query + n, tile.keys[group], v, sums[n][v]));
    }
  }
}

template <class Cache>
void score(const AttentionTile& tile, int groups) {
  for (int group = 0; group < groups; ++group) {
    for (int query = 0; query < tile.query_count; query += kQueriesPerPass) {
      switch (tile.query_count - query) {
        case 1: score_group<1, Cache>(tile, query, group); break;
        case 2: score_group<2, Cache>(tile, query, group); break;
        case 3: score_group<3, Cache>(tile, query, group); break;
        default: score_group<4, Cache>(tile, query, group); break;
      }
    }
  }
}

// --- Values --------------------------------------------------------------------------------------

// Elements [first, first + 16) of a step of the split.
template <class Cache>
[[gnu::always_inline]] inline void load_values(const AttentionTile& tile, int step, int first,
                                               const __m256i (&masks)[kVectors],
                                               __m256i (&values)[kVectors]) {
  constexpr int kStepsPerGroup = kGroupPositions / Cache::kPositions;
  const std::byte* words = tile.values[step / kStepsPerGroup] +
                           (step % kStepsPerGroup * tile.value_stride + first) * Cache::kValueBytes;
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    values[v] = Cache::load_values(words + 8 * v * Cache::kValueBytes, masks[v]);
  }
}

// What lies past the steps that all queries of a pass share, product by product: of floats, none
// behind the query's own count is touched, even with weight zero.
template <class Cache>
[[gnu::always_inline]] inline void finish_query(const AttentionTile& tile, int query,
                                                int first_step, int first,
                                                const __m256i (&masks)[kVectors],
                                                typename Cache::Vector (&sums)[kVectors]) {
  const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
  const int end = (tile.counts[query] * Cache::kParts + Cache::kPositions - 1) / Cache::kPositions;
  for (int i = first_step * Cache::kParts; i < end; ++i) {
    __m256i values[kVectors];
    load_values<Cache>(tile, i / Cache::kParts, first, masks, values);
    const auto weight = Cache::broadcast(weights + i * 4);
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Cache::add_positions(sums[v], Cache::values(values[v], i % Cache::kParts), weight);
    }
  }
}

template <int kQueries, class Cache>
void weigh_elements(const AttentionTile& tile, const Cache& cache, int query, int first) {
  const __m256i masks[kVectors] = {mask_of(tile.value_dim - first),
                                   mask_of(tile.value_dim - first - 8)};
  int common = tile.counts[query];
  for (int n = 1; n < kQueries; ++n) {
    if (tile.counts[query + n] < common) common = tile.counts[query + n];
  }
  const int steps = common / Cache::kPositions;
  const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
  typename Cache::Vector sums[kQueries][kVectors] = {};
  for (int step = 0; step < steps; ++step) {
    __m256i both[kVectors];
    load_values<Cache>(tile, step, first, masks, both);
#pragma GCC unroll 8
    for (int k = 0; k < Cache::kParts; ++k) {
      const auto low = Cache::values(both[0], k);
      const auto high = Cache::values(both[1], k);
#pragma GCC unroll 8
      for (int n = 0; n < kQueries; ++n) {
        const auto weight =
            Cache::broadcast(weights + (n * kSplitPositions + step * Cache::kParts + k) * 4);
        Cache::add_positions(sums[n][0], low, weight);
        Cache::add_positions(sums[n][1], high, weight);
      }
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kQueries; ++n) {
    finish_query<Cache>(tile, query + n, steps, first, masks, sums[n]);
    float* out = tile.out + (query + n) * tile.value_dim + first;
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      _mm256_maskstore_ps(out + 8 * v, masks[v], cache.result(query + n, sums[n][v]));
    }
  }
}

template <class Cache>
void weigh(const AttentionTile& tile, const Cache& cache, int query, int first) {
  switch (tile.query_count - query) {
    case 1: return weigh_elements<1>(tile, cache, query, first);
    case 2: return weigh_elements<2>(tile, cache, query, first);
    case 3: return weigh_elements<3>(tile, cache, query, first);
    default: return weigh_elements<4>(tile, cache, query, first);
  }
}

template <class Cache>
void attend(const AttentionTile& tile) {
  int longest = 0;
  for (int q = 0; q < tile.query_count; ++q) {
    if (tile.counts[q] > longest) longest = tile.counts[q];
  }
  score<Cache>(tile, (longest + kGroupPositions - 1) / kGroupPositions);
  Cache cache;
  for (int q = 0; q < tile.query_count; ++q) cache.weigh(tile, q);
  for (int query = 0; query < tile.query_count; query += kQueriesPerPass) {
    for (int first = 0; first < tile.value_dim; first += 8 * kVectors) {
      weigh(tile, cache, query, first);
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

// --- The codes of heads in an INT8 cache ---------------------------------------------------------

int largest_lane(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1)));
}

float quantize_head(const float* in, int size, std::int8_t* codes) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  const auto part = [in, size](int i) { return _mm256_maskload_ps(in + i, mask_of(size - i)); };
  __m256i largest_bits = _mm256_setzero_si256();
  for (int i = 0; i < size; i += 8) {
    largest_bits =
        _mm256_max_epi32(largest_bits, _mm256_and_si256(_mm256_castps_si256(part(i)), magnitude));
  }
  const CodeScale by = code_scale(static_cast<std::uint32_t>(largest_lane(largest_bits)));
  const __m256 inverse = _mm256_set1_ps(by.inverse);
  for (int i = 0; i < size; i += 8) {
    __m256i words = _mm256_cvtps_epi32(_mm256_mul_ps(part(i), inverse));
    if (by.is_zero) words = _mm256_setzero_si256();
    const __m128i pairs =
        _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    alignas(16) std::int8_t eight[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(eight), _mm_packs_epi16(pairs, pairs));
    __builtin_memcpy(codes + i, eight, static_cast<std::size_t>(size - i < 8 ? size - i : 8));
  }
  return by.scale;
}

}  // namespace

void add_avx2_attention(CpuKernels* table) {
  table->attention_f32 = attend<F32Cache>;
  table->attention_bf16 = attend<Bf16Cache>;
  table->attention_int8 = attend<Int8Cache>;
  table->attention_fold = fold;
  table->quantize_head = quantize_head;
}

}  // namespace kun
