// Attention of BF16 caches over one split on AMX: queries are the rows of a tile, 16 of them
// together, and keys and values lie in the cache as tiles want them. What becomes of a query does
// not depend on the others of its tile.
//
// The tile unit multiplies 16 queries with 32 elements of 16 keys in 16 cycles, where AVX-512 takes
// 256 dot products, and with 16 elements of 16 values in as many.
#include <immintrin.h>

#include "backends/cpu/amx/parts.h"
#include "backends/cpu/amx/tiles.h"
#include "backends/cpu/avx512/attention_parts.h"

namespace kun {
namespace {

constexpr int kVector = 16;  // elements of a value in a tile
constexpr int kPairs = kGroupPositions / 2;
constexpr int kWeightBytes = kGroupPositions * 2;  // of a group
constexpr int kScoreStride = kSplitPositions * 4;

// Tiles: 0 to 3 are sums, which have kCommon in common and meet one kOther each; the rest are for
// what a head has beyond whole tiles.
constexpr int kCommon = 4;
constexpr int kOther = 5;
constexpr int kLastCommon = 6;
constexpr int kLastSums = 6;
constexpr int kLastOther = 7;

// Up to 16 queries of a tile, and the groups of positions that any of them reads.
struct QueryBlock {
  QueryBlock(const AttentionTile& tile, int first_query, int query_count)
      : first(first_query), count(query_count), shortest(kSplitPositions) {
    int longest = 0;
    for (int q = first; q < first + count; ++q) {
      if (tile.counts[q] > longest) longest = tile.counts[q];
      if (tile.counts[q] < shortest) shortest = tile.counts[q];
    }
    groups = (longest + kGroupPositions - 1) / kGroupPositions;
  }

  int first;
  int count;
  int shortest;  // count of positions
  int groups;
};

// Lines of 32 elements of a query, or of a key.
int lines_of(const AttentionTile& tile) {
  return (tile.dim + kBlockColumns - 1) / kBlockColumns;
}

// --- Scores --------------------------------------------------------------------------------------

void shape_for_scores(const AttentionTile& tile, const QueryBlock& block) {
  TileShapes shapes;
  for (int i = 0; i <= kCommon; ++i) shapes.set(i, block.count, kTileRowBytes);
  shapes.set(kOther, kTileRows, kTileRowBytes);
  const int left = tile.dim % kBlockColumns;
  if (left != 0) {
    shapes.set(kLastCommon, block.count, left * 2).set(kLastOther, left / 2, kTileRowBytes);
  }
  shapes.load();
}

// Scores of the groups `group` + kSums, not yet scaled.
template <int... kSums, class Prefetch>
void score_groups(const AttentionTile& tile, const QueryBlock& block, int group,
                  Prefetch& prefetch) {
  const std::int64_t stride = std::int64_t{tile.dim} * 2;
  const auto* queries = static_cast<const std::byte*>(tile.queries) + block.first * stride;
  const int lines = tile.dim / kBlockColumns;
  const int line_bytes = kTileRows * kTileRowBytes;  // of the keys of a group
  (tile_zero<kSums>(), ...);
  for (int i = 0; i < lines; ++i) {
    prefetch.step();
    tile_load<kCommon>(queries + i * kTileRowBytes, stride);
    ((tile_load<kOther>(tile.keys[group + kSums] + i * line_bytes, kTileRowBytes),
      tile_dot_bf16<kSums, kCommon, kOther>()),
     ...);
  }
  if (tile.dim % kBlockColumns != 0) {
    prefetch.step();
    tile_load<kLastCommon>(queries + lines * kTileRowBytes, stride);
    ((tile_load<kLastOther>(tile.keys[group + kSums] + lines * line_bytes, kTileRowBytes),
      tile_dot_bf16<kSums, kLastCommon, kLastOther>()),
     ...);
  }
  float* scores = tile.scores + block.first * kSplitPositions;
  (tile_store<kSums>(scores + (group + kSums) * kGroupPositions, kScoreStride), ...);
}

template <class Prefetch>
void score(const AttentionTile& tile, const QueryBlock& block, Prefetch& prefetch) {
  shape_for_scores(tile, block);
  int group = 0;
  for (; group + 4 <= block.groups; group += 4) {
    score_groups<0, 1, 2, 3>(tile, block, group, prefetch);
  }
  for (; group < block.groups; ++group) score_groups<0>(tile, block, group, prefetch);
  TileShapes::release();
  const __m512 scale = _mm512_set1_ps(tile.scale);
  for (int q = block.first; q < block.first + block.count; ++q) {
    float* row = tile.scores + q * kSplitPositions;
    for (int g = 0; g < block.groups; ++g, row += kGroupPositions) {
      _mm512_storeu_ps(row, _mm512_mul_ps(_mm512_loadu_ps(row), scale));
    }
  }
}

// --- Weights -------------------------------------------------------------------------------------

// Weights of the block's queries as BF16, zeros past their counts.
void weigh(const AttentionTile& tile, const QueryBlock& block, Prefetcher& prefetch) {
  for (int q = block.first; q < block.first + block.count; ++q) {
    weigh_as_bf16(tile, q, prefetch);
    auto* weights = reinterpret_cast<std::byte*>(tile.scores + q * kSplitPositions);
    const int own_groups = (tile.counts[q] + kGroupPositions - 1) / kGroupPositions;
    for (int g = own_groups; g < block.groups; ++g) {
      *reinterpret_cast<AliasedVector*>(weights + g * kWeightBytes) = _mm256_setzero_si256();
    }
  }
}

// --- Values --------------------------------------------------------------------------------------

void shape_for_values(const AttentionTile& tile, const QueryBlock& block) {
  TileShapes shapes;
  for (int i = 0; i < kCommon; ++i) shapes.set(i, block.count, kTileRowBytes);
  shapes.set(kCommon, block.count, kWeightBytes).set(kOther, kPairs, kTileRowBytes);
  const int left = tile.value_dim % kVector;
  if (left != 0) shapes.set(kLastSums, block.count, left * 4).set(kLastOther, kPairs, left * 4);
  shapes.load();
}

// Pairs of positions of a group, 16 elements wide, as they lie in the cache.
class AllValues {
 public:
  template <int kTile>
  static void load(const AttentionTile& tile, int group, int element) {
    tile_load<kTile>(tile.values[group] + std::int64_t{element} * 4, tile.value_stride * 4);
  }
};

// The same for a query alone, with zeros past its count: what lies there is not its to touch, and
// an infinity or a NaN would show even through a weight of zero.
class OwnValues {
 public:
  explicit OwnValues(int count) : count_(count) {}

  template <int kTile>
  void load(const AttentionTile& tile, int group, int element) {
    const int left = count_ - group * kGroupPositions;
    if (left >= kGroupPositions) return AllValues::load<kTile>(tile, group, element);
    const __mmask16 elements = mask_of(tile.value_dim - element);
    for (int p = 0; p < kPairs; ++p) {
      const int keep = 2 * p + 1 < left ? -1 : 2 * p < left ? 0xFFFF : 0;
      const __m512i pairs = _mm512_maskz_loadu_epi32(
          elements, tile.values[group] + (p * tile.value_stride + element) * 4);
      _mm512_store_si512(rows_[p], _mm512_and_si512(pairs, _mm512_set1_epi32(keep)));
    }
    tile_load<kTile>(rows_, kTileRowBytes);
  }

 private:
  int count_;
  alignas(64) std::byte rows_[kPairs][kTileRowBytes];
};

// The elements from `element` on, kVector for each of kSums.
template <int... kSums, class Values, class Prefetch>
void add_vectors(const AttentionTile& tile, const QueryBlock& block, Values& values, int element,
                 Prefetch& prefetch) {
  const float* weights = tile.scores + block.first * kSplitPositions;
  (tile_zero<kSums>(), ...);
  for (int g = 0; g < block.groups; ++g) {
    prefetch.step();
    tile_load<kCommon>(reinterpret_cast<const std::byte*>(weights) + g * kWeightBytes,
                       kScoreStride);
    ((values.template load<kOther>(tile, g, element + kSums * kVector),
      tile_dot_bf16<kSums, kCommon, kOther>()),
     ...);
  }
  float* out = tile.out + std::int64_t{block.first} * tile.value_dim + element;
  (tile_store<kSums>(out + kSums * kVector, std::int64_t{tile.value_dim} * 4), ...);
}

// The last elements, fewer than kVector.
template <class Values>
void add_last(const AttentionTile& tile, const QueryBlock& block, Values& values, int element) {
  const float* weights = tile.scores + block.first * kSplitPositions;
  tile_zero<kLastSums>();
  for (int g = 0; g < block.groups; ++g) {
    tile_load<kCommon>(reinterpret_cast<const std::byte*>(weights) + g * kWeightBytes,
                       kScoreStride);
    values.template load<kLastOther>(tile, g, element);
    tile_dot_bf16<kLastSums, kCommon, kLastOther>();
  }
  float* out = tile.out + std::int64_t{block.first} * tile.value_dim + element;
  tile_store<kLastSums>(out, std::int64_t{tile.value_dim} * 4);
}

template <class Values, class Prefetch>
void add_values(const AttentionTile& tile, const QueryBlock& block, Values values,
                Prefetch& prefetch) {
  shape_for_values(tile, block);
  int element = 0;
  for (; element + 4 * kVector <= tile.value_dim; element += 4 * kVector) {
    add_vectors<0, 1, 2, 3>(tile, block, values, element, prefetch);
  }
  for (; element + kVector <= tile.value_dim; element += kVector) {
    add_vectors<0>(tile, block, values, element, prefetch);
  }
  if (element < tile.value_dim) add_last(tile, block, values, element);
  TileShapes::release();
}

// Whether all values are finite of the groups in which some query of the block does not read every
// position: then weights of zero hide what it does not read.
bool tails_are_finite(const AttentionTile& tile, const QueryBlock& block) {
  const __m512i exponent = _mm512_set1_epi16(0x7F80);
  for (int g = block.shortest / kGroupPositions; g < block.groups; ++g) {
    for (int p = 0; p < kPairs; ++p) {
      const std::byte* row = tile.values[g] + p * tile.value_stride * 4;
      for (int i = 0; i < tile.value_dim; i += kVector) {
        const __m512i pairs = _mm512_maskz_loadu_epi32(mask_of(tile.value_dim - i), row + i * 4);
        const __m512i bits = _mm512_and_si512(pairs, exponent);
        if (_mm512_cmpeq_epi16_mask(bits, exponent) != 0) return false;
      }
    }
  }
  return true;
}

template <class Prefetch>
void attend_block(const AttentionTile& tile, const QueryBlock& block, Prefetch& first_reads,
                  Prefetcher& prefetch) {
  score(tile, block, first_reads);
  weigh(tile, block, prefetch);
  if (tails_are_finite(tile, block)) return add_values(tile, block, AllValues(), first_reads);
  NoPrefetcher none;
  for (int q = block.first; q < block.first + block.count; ++q) {
    add_values(tile, QueryBlock(tile, q, 1), OwnValues(tile.counts[q]), none);
  }
}

void attend(const AttentionTile& tile) {
  const int groups = groups_of(tile);
  const int passes = groups / 4 + groups % 4;
  Prefetcher prefetch(tile, passes * lines_of(tile) + groups * tile.query_count +
                                groups * ((tile.value_dim + 63) / 64));
  NoPrefetcher none;
  for (int q = 0; q < tile.query_count; q += kTileRows) {
    const int left = tile.query_count - q;
    const QueryBlock block(tile, q, left < kTileRows ? left : kTileRows);
    if (q == 0) {
      attend_block(tile, block, prefetch, prefetch);
    } else {
      attend_block(tile, block, none, prefetch);
    }
  }
}

}  // namespace

void add_amx_attention(CpuKernels* table) {
  table->attention_bf16 = attend;
}

}  // namespace kun
