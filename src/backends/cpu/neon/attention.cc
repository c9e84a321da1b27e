// Attention of F32 and BF16 caches for NEON. A BF16 cache is widened to F32 in registers: queries
// and weights are not rounded.
#include "backends/cpu/neon/attention.h"

namespace kun {
namespace {

struct Floats {
  static constexpr int kQueriesPerPass = 4;

  static void weigh(const AttentionTile& tile, int query) { softmax(tile, query); }
  static float32x4_t broadcast(const std::byte* data) {
    return vld1q_dup_f32(reinterpret_cast<const float*>(data));
  }
  static float32x4_t add(float32x4_t sum, float32x4_t part, float32x4_t factor) {
    return vfmaq_f32(sum, part, factor);
  }
};

struct F32 : Floats {
  static constexpr int kElements = 1;
  static constexpr int kPositions = 1;
  static constexpr int kParts = 1;
  static float32x4_t part(uint32x4_t word, int) { return vreinterpretq_f32_u32(word); }
};

struct Bf16 : Floats {
  static constexpr int kElements = 2;
  static constexpr int kPositions = 2;
  static constexpr int kParts = 2;
  static float32x4_t part(uint32x4_t pair, int which) {
    return vreinterpretq_f32_u32(which == 0 ? vshlq_n_u32(pair, 16)
                                            : vandq_u32(pair, vdupq_n_u32(0xFFFF0000U)));
  }
};

void fold(float* max, float* sum, float* out, float split_max, float split_sum,
          const float* split_out, int dim) {
  const float joint = split_max > *max ? split_max : *max;
  const float old_weight = vgetq_lane_f32(exp(vdupq_n_f32(*max - joint)), 0);
  const float new_weight = vgetq_lane_f32(exp(vdupq_n_f32(split_max - joint)), 0);
  *max = joint;
  *sum = *sum * old_weight + split_sum * new_weight;
  int i = 0;
  for (; i + 4 <= dim; i += 4) {
    const float32x4_t old_part = vmulq_n_f32(vld1q_f32(out + i), old_weight);
    vst1q_f32(out + i, vfmaq_n_f32(old_part, vld1q_f32(split_out + i), new_weight));
  }
  for (; i < dim; ++i) out[i] = __builtin_fmaf(split_out[i], new_weight, out[i] * old_weight);
}

}  // namespace

void add_neon_attention(CpuKernels* table) {
  table->attention_f32 = attend<FloatCache<F32>>;
  table->attention_bf16 = attend<FloatCache<Bf16>>;
  table->attention_fold = fold;
}

}  // namespace kun
