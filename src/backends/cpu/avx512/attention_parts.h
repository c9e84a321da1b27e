// What the attention kernels of all caches share, for AVX-512 only.
#pragma once

#include <immintrin.h>

#include "backends/cpu/kernels.h"

namespace kun {
namespace {

using AliasedInt = int __attribute__((may_alias));

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

}  // namespace
}  // namespace kun
