// Attention over one split of a BF16 cache with ARMv8.6's dot products: a vector is 4 positions (or
// elements) of a pair, met by the same pair of a query (or of its weights, which are rounded to
// BF16).
#include "backends/cpu/neon/attention.h"

namespace kun {
namespace {

struct Bf16Dots {
  static constexpr int kQueriesPerPass = 6;
  static constexpr int kElements = 2;
  static constexpr int kPositions = 2;
  static constexpr int kParts = 1;

  // Over the scores already read: pairs of positions, half their size.
  static void weigh(const AttentionTile& tile, int query) {
    softmax(tile, query);
    float* row = tile.scores + query * kSplitPositions;
    for (int p = 0; p < tile.counts[query]; p += 4) {
      const bfloat16x8_t four = vcvtq_low_bf16_f32(vld1q_f32(row + p));
      vst1_u32(reinterpret_cast<std::uint32_t*>(row) + p / 2,
               vget_low_u32(vreinterpretq_u32_bf16(four)));
    }
  }

  static bfloat16x8_t part(uint32x4_t pairs, int) { return vreinterpretq_bf16_u32(pairs); }
  static bfloat16x8_t broadcast(const std::byte* pair) {
    return vreinterpretq_bf16_u32(vld1q_dup_u32(reinterpret_cast<const std::uint32_t*>(pair)));
  }
  static float32x4_t add(float32x4_t sum, bfloat16x8_t part, bfloat16x8_t factor) {
    return vbfdotq_f32(sum, part, factor);
  }
};

}  // namespace

void add_neon_bf16_attention(CpuKernels* table) {
  table->attention_bf16 = attend<FloatCache<Bf16Dots>>;
}

}  // namespace kun
