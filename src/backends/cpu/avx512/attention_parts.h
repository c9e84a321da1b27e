// What the attention kernels of all caches share, for AVX-512 and AMX.
#pragma once

#include <immintrin.h>

#include "backends/cpu/avx512/exp.h"
#include "backends/cpu/kernels.h"

namespace kun {
namespace {

using AliasedInt = int __attribute__((may_alias));
using AliasedVector = __m256i __attribute__((may_alias));

inline __m512i broadcast(const void* data) {
  return _mm512_set1_epi32(*static_cast<const AliasedInt*>(data));
}

inline __mmask16 mask_of(int left) {
  return static_cast<__mmask16>(left >= 16 ? 0xFFFFU : left <= 0 ? 0U : (1U << left) - 1U);
}

// Groups of positions that any query of the tile reads.
inline int groups_of(const AttentionTile& tile) {
  int longest = 0;
  for (int q = 0; q < tile.query_count; ++q) {
    if (tile.counts[q] > longest) longest = tile.counts[q];
  }
  return (longest + kGroupPositions - 1) / kGroupPositions;
}

// Walks through what the next tile will read, a few lines at every step of this one, so that all
// steps see the same share of it: a burst would stall the loads beside it.
class Prefetcher {
 public:
  Prefetcher(const AttentionTile& tile, int steps)
      : piece_(tile.next),
        end_(tile.next + 2 * tile.next_groups),
        piece_bytes_(tile.next_bytes),
        lines_(2 * tile.next_groups * (tile.next_bytes / 64)),
        steps_(steps) {}

  void step() {
    for (due_ += lines_; due_ >= steps_ && piece_ != end_; due_ -= steps_) {
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
  int lines_;
  int steps_;
  int due_ = 0;  // of lines, in parts of steps_
  int offset_ = 0;
};

// For all passes but the first over the same memory.
struct NoPrefetcher {
  static void step() {}
};

// Calls keep(position, mask, weights) for 16 positions at a time; weights past the count are 0.
template <class Keep>
[[gnu::always_inline]] inline void softmax(const AttentionTile& tile, int query,
                                           Prefetcher& prefetch, Keep keep) {
  const int count = tile.counts[query];
  const float* row = tile.scores + query * kSplitPositions;
  const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
  __m512 largest = lowest;
  for (int p = 0; p < count; p += kGroupPositions) {
    // A NaN score does not become the maximum; it makes its own weight NaN below.
    largest = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, mask_of(count - p), row + p), largest);
  }
  const float max = _mm512_reduce_max_ps(largest);
  const __m512 shift = _mm512_set1_ps(max);
  __m512 sum = _mm512_setzero_ps();
  Prefetcher local = prefetch;  // in registers
  for (int p = 0; p < count; p += kGroupPositions) {
    local.step();
    const __mmask16 mask = mask_of(count - p);
    const __m512 score = _mm512_maskz_loadu_ps(mask, row + p);
    const __m512 weight = _mm512_maskz_mov_ps(mask, exp(_mm512_sub_ps(score, shift)));
    sum = _mm512_add_ps(sum, weight);
    keep(p, mask, weight);
  }
  prefetch = local;
  tile.max[query] = max;
  tile.sum[query] = _mm512_reduce_add_ps(sum);
}

// The softmax of a BF16 cache: weights as BF16 over the scores of positions already read, whose
// size is twice theirs.
inline void weigh_as_bf16(const AttentionTile& tile, int query, Prefetcher& prefetch) {
  float* row = tile.scores + query * kSplitPositions;
  softmax(tile, query, prefetch, [row](int p, __mmask16, __m512 weight) {
    *reinterpret_cast<AliasedVector*>(row + p / 2) =
        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(weight));
  });
}

}  // namespace
}  // namespace kun
