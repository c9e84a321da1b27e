// Linear kernels for tables with matrix products, which multiply 2 rows by 2 tokens. Panels hold
// short pieces of columns of every row, so two neighbouring pieces of 4 rows are zipped into two of
// 2 rows; tokens are paired once for every span of columns and met by all 32 rows. A sum is a
// vector [row][token]. One token takes the same instructions as many: its bits must not depend on
// its company.
#pragma once

#include "backends/cpu/neon/tile.h"

namespace kun {
namespace {

// Two neighbouring words of 4 rows, as two vectors of 2 rows.
struct RowPairs {
  uint32x4_t rows[2];
};
[[gnu::always_inline]] inline RowPairs zip_rows(uint32x4_t low, uint32x4_t high) {
  return {{vzip1q_u32(low, high), vzip2q_u32(low, high)}};
}

// From [row pair][token pair] to [slice][token].
[[gnu::noinline]] inline void store_pairs(const LinearTile& tile, const float32x4_t* sums,
                                          int pairs) {
  for (int slice = 0; slice < kSlices; ++slice) {
    for (int t = 0; t < tile.tokens; ++t) {
      const float32x4_t low = sums[2 * slice * pairs + t / 2];
      const float32x4_t high = sums[(2 * slice + 1) * pairs + t / 2];
      store_slice(tile, slice, t, t % 2 == 0 ? vuzp1q_f32(low, high) : vuzp2q_f32(low, high));
    }
  }
}

// `Kind` says what a unit of columns is and how it is multiplied:
//   Input                        one unit of two tokens
//   kSpanUnits                   units of one span
//   units(cols)                  units of a row
//   span_bytes(count)            of the panel, for a span of so many units
//   slices(pairs)                slices of one pass: their sums must fit the registers
//   input<kTokens>(tile, unit, even, odd)
//   multiply<kPairs>(tile, span, first_slice, count, input, sums)
template <class Kind, int kTokens>
struct PairPanel {
  static constexpr int kPairs = (kTokens + 1) / 2;

  static void run(const LinearTile& tile) {
    float32x4_t sums[2 * kSlices][kPairs] = {};
    typename Kind::Input in[Kind::kSpanUnits * kPairs];
    const std::byte* span = tile.panel;
    const std::int64_t units = Kind::units(tile.cols);
    Prefetcher prefetcher(tile, (units + Kind::kSpanUnits - 1) / Kind::kSpanUnits);
    for (std::int64_t unit = 0; unit < units; unit += Kind::kSpanUnits) {
      const std::int64_t left = units - unit;
      const int count = left < Kind::kSpanUnits ? static_cast<int>(left) : Kind::kSpanUnits;
      prefetcher.step();
      for (int i = 0; i < count; ++i) {
        for (int p = 0; p < kPairs; ++p) {
          // The last of an odd number of tokens is its own partner.
          const int odd = 2 * p + 1 < kTokens ? 2 * p + 1 : 2 * p;
          in[i * kPairs + p] = Kind::template input<kTokens>(tile, unit + i, 2 * p, odd);
        }
      }
      for (int first = 0; first < kSlices; first += Kind::slices(kPairs)) {
        Kind::template multiply<kPairs>(tile, span, first, count, in, &sums[2 * first]);
      }
      span += Kind::span_bytes(count);
    }
    store_pairs(tile, &sums[0][0], kPairs);
  }
};

}  // namespace
}  // namespace kun
