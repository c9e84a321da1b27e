// What the linear kernels of AVX-512 and AMX share: a vector is 16 rows, so a panel is two of them.
// In an unnamed namespace, so that every kernel file has its own copy (see kernels.h).
#pragma once

#include <immintrin.h>

#include "backends/cpu/kernels.h"

namespace kun {
namespace {

constexpr int kHalves = 2;  // vectors of 16 rows in a panel

// Where the sums of 16 rows go, the `half`-th of a panel: at least one of them is valid.
class OutputRows {
 public:
  OutputRows(const LinearTile& tile, int half)
      : mask_(static_cast<__mmask16>((1U << valid_rows(tile, half)) - 1U)),
        bias_(tile.bias == nullptr ? _mm512_setzero_ps()
                                   : _mm512_maskz_loadu_ps(mask_, tile.bias + 16 * half)),
        out_(tile.out + 16 * half),
        stride_(tile.out_stride),
        accumulate_(tile.accumulate) {}

  [[gnu::always_inline]] void store(int token, __m512 sums) const {
    float* out = out_ + token * stride_;
    __m512 value = _mm512_add_ps(sums, bias_);
    if (accumulate_) value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask_, out), value);
    _mm512_mask_storeu_ps(out, mask_, value);
  }

 private:
  static int valid_rows(const LinearTile& tile, int half) {
    const int rows = tile.rows - 16 * half;
    return rows < 16 ? rows : 16;
  }

  __mmask16 mask_;
  __m512 bias_;
  float* out_;
  std::int64_t stride_;
  bool accumulate_;
};

// Spreads a tile's prefetches over its steps: a burst would stall the loads beside it.
class Prefetcher {
 public:
  Prefetcher(const LinearTile& tile, std::int64_t steps)
      : next_(tile.prefetch),
        end_(tile.prefetch + tile.prefetch_bytes),
        per_step_((tile.prefetch_bytes / 64 + steps - 1) / steps * 64) {}

  void step() {
    for (std::int64_t i = 0; i < per_step_; i += 64) _mm_prefetch(next_ + i, _MM_HINT_T1);
    next_ = next_ < end_ ? next_ + per_step_ : next_;
  }

 private:
  const std::byte* next_;
  const std::byte* end_;
  std::int64_t per_step_;
};

}  // namespace
}  // namespace kun
