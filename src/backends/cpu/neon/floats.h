// Linear kernels over F32 and BF16 panels in F32 arithmetic, for tables without BF16 instructions.
#pragma once

#include "backends/cpu/neon/tile.h"

namespace kun {
namespace {

struct F32Columns {
  static constexpr int kPerWord = 1;
  static float32x4_t part(uint32x4_t word, int) { return vreinterpretq_f32_u32(word); }
};

struct Bf16Columns {
  static constexpr int kPerWord = 2;
  static float32x4_t part(uint32x4_t pair, int which) {
    return vreinterpretq_f32_u32(which == 0 ? vshlq_n_u32(pair, 16)
                                            : vandq_u32(pair, vdupq_n_u32(0xFFFF0000U)));
  }
};

template <class Columns>
struct Float {
  static constexpr std::int64_t kSpanWords = 64;
  static constexpr int kWordBytes = kSlices * kSliceBytes;

  template <int kTokens>
  struct Panel {
    static constexpr int kTaken = kTokens <= 2 ? 8 : 4;

    [[gnu::noinline]] static void run(const LinearTile& tile) {
      float32x4_t sums[kSlices][kTokens] = {};
      const std::int64_t words = (tile.cols + Columns::kPerWord - 1) / Columns::kPerWord;
      Prefetcher prefetcher(tile, (words + kSpanWords - 1) / kSpanWords);
      for (std::int64_t word = 0; word < words; word += kSpanWords) {
        prefetcher.step();
        const std::int64_t end = words - word < kSpanWords ? words : word + kSpanWords;
        for (int first = 0; first < kSlices; first += kTaken) {
          run_span(tile, word, end, first, &sums[first]);
        }
      }
      store_sums(tile, &sums[0][0]);
    }

   private:
    [[gnu::always_inline]] static void multiply(const std::byte* weights, int part, const float* in,
                                                float32x4_t (&sums)[kTaken][kTokens]) {
      float x[kTokens];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) x[t] = in[t];
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
        const float32x4_t w = Columns::part(load_words(weights + s * kSliceBytes), part);
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) sums[s][t] = vfmaq_n_f32(sums[s][t], w, x[t]);
      }
    }

    [[gnu::always_inline]] static void run_span(const LinearTile& tile, std::int64_t word,
                                                std::int64_t end, int first,
                                                float32x4_t (*sums)[kTokens]) {
      const std::byte* weights = tile.panel + word * kWordBytes + first * kSliceBytes;
      const float* in =
          static_cast<const float*>(tile.activations) + word * Columns::kPerWord * kTokens;
      float32x4_t part[kTaken][kTokens];
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) part[s][t] = sums[s][t];
      }
      for (std::int64_t column = word * Columns::kPerWord; word < end; ++word) {
        multiply(weights, 0, in, part);
        in += kTokens;
        if constexpr (Columns::kPerWord == 2) {
          if (column + 1 < tile.cols) multiply(weights, 1, in, part);
          in += kTokens;
          column += 2;
        }
        weights += kWordBytes;
      }
#pragma GCC unroll 8
      for (int s = 0; s < kTaken; ++s) {
#pragma GCC unroll 8
        for (int t = 0; t < kTokens; ++t) sums[s][t] = part[s][t];
      }
    }
  };
};

}  // namespace
}  // namespace kun
