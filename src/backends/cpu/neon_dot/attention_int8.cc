// Attention of an INT8 cache with dot products: four elements of a position, or four positions of
// an element, at a time. A weight is two signed bytes there, 256 times the high one plus the low.
#include "backends/cpu/neon/attention_int8.h"

namespace kun {
namespace {

struct DotProducts {
  template <int kQueries>
  static void score(const AttentionTile& tile, int query, const std::byte* piece,
                    int32x4_t (&sums)[kQueries][kGroupVectors]) {
    const auto* q = static_cast<const std::byte*>(tile.queries) + std::int64_t{query} * tile.dim;
    for (int i = 0; i < tile.dim; i += 4) {
      int8x16_t keys[kGroupVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kGroupVectors; ++v) {
        keys[v] = load_bytes(piece + std::int64_t{i} * kGroupPositions + 16 * v);
      }
#pragma GCC unroll 4
      for (int n = 0; n < kQueries; ++n) {
        const int8x16_t element = broadcast(q + std::int64_t{n} * tile.dim + i);
#pragma GCC unroll 4
        for (int v = 0; v < kGroupVectors; ++v) {
          sums[n][v] = vdotq_s32(sums[n][v], keys[v], element);
        }
      }
    }
  }

  static int8x16_t broadcast(const std::byte* four) {
    return vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const std::int32_t*>(four)));
  }

  // For every four positions their low bytes, then their high ones: half the size, over those
  // already read. The low byte is rounded, so that neither leaves its range.
  static void narrow(float* row, int groups) {
    for (int p = 0; p < groups * kGroupPositions; p += 4) {
      const int16x4_t codes = vmovn_s32(vreinterpretq_s32_f32(vld1q_f32(row + p)));
      const int16x4_t high = vrshr_n_s16(codes, 8);
      const int16x4_t low = vsub_s16(codes, vshl_n_s16(high, 8));
      vst1_s32(reinterpret_cast<std::int32_t*>(row) + p / 2,
               vreinterpret_s32_s8(vmovn_s16(vcombine_s16(low, high))));
    }
  }

  template <int kQueries>
  static void weigh(const AttentionTile& tile, int query, int first, int groups,
                    int32x4_t (&sums)[kQueries][kElementVectors]) {
    const auto* weights = reinterpret_cast<const std::byte*>(tile.scores + query * kSplitPositions);
    int32x4_t high_sums[kQueries][kElementVectors] = {};
    for (int pair = 0; pair < groups * kPairsPerGroup; pair += 2) {
      const int16x8_t even = vreinterpretq_s16_s8(load_bytes(value_pair(tile, pair, first)));
      const int16x8_t odd = vreinterpretq_s16_s8(load_bytes(value_pair(tile, pair + 1, first)));
      const int8x16_t values[kElementVectors] = {vreinterpretq_s8_s16(vzip1q_s16(even, odd)),
                                                 vreinterpretq_s8_s16(vzip2q_s16(even, odd))};
#pragma GCC unroll 4
      for (int n = 0; n < kQueries; ++n) {
        const std::byte* eight = weights + (n * kSplitPositions + pair) * 4;
        const int8x16_t low = broadcast(eight);
        const int8x16_t high = broadcast(eight + 4);
#pragma GCC unroll 2
        for (int v = 0; v < kElementVectors; ++v) {
          sums[n][v] = vdotq_s32(sums[n][v], values[v], low);
          high_sums[n][v] = vdotq_s32(high_sums[n][v], values[v], high);
        }
      }
    }
#pragma GCC unroll 4
    for (int n = 0; n < kQueries; ++n) {
#pragma GCC unroll 2
      for (int v = 0; v < kElementVectors; ++v) {
        sums[n][v] = vaddq_s32(sums[n][v], vshlq_n_s32(high_sums[n][v], 8));
      }
    }
  }
};

}  // namespace

void add_neon_dot_int8_attention(CpuKernels* table) {
  table->attention_int8 = attend<Int8Cache<DotProducts>>;
}

}  // namespace kun
