// The linear kernels of ARMv8.0, and the quantizer all NEON tables share.
#include "backends/cpu/neon/linear_kernels.h"

namespace kun {
namespace {

// Products of two codes fit 16 bits, and so does the sum of two: 2 * 128 * 127 < 2^15.
struct WideningDot {
  template <int kLane>
  static int32x4_t add(int32x4_t sum, int8x16_t weights, int8x16_t in) {
    const int8x16_t quad = vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(in), kLane));
    const int16x8_t low = vmull_s8(vget_low_s8(weights), vget_low_s8(quad));
    const int16x8_t high = vmull_high_s8(weights, quad);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
  }
};

// A float's magnitude as an integer orders like the float, with NaN above infinity.
constexpr std::uint32_t kInfinityBits = 0x7F800000U;

void quantize_block(const float* in, ActivationBlock* out) {
  uint32x4_t largest_bits = vdupq_n_u32(0);
  for (int i = 0; i < kBlockColumns; i += 4) {
    const uint32x4_t bits = vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(in + i)));
    largest_bits = vmaxq_u32(largest_bits, bits);
  }
  const std::uint32_t bits = vmaxvq_u32(largest_bits);
  const bool finite = bits < kInfinityBits;
  float largest = 0.0F;
  __builtin_memcpy(&largest, &bits, 4);
  const bool zero = !finite || largest < kActivationFloor;
  const float inverse = zero ? 0.0F : 127.0F / largest;
  int sums[2] = {0, 0};
  for (int i = 0; i < kBlockColumns; i += 8) {
    int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(in + i), inverse));
    int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(in + i + 4), inverse));
    if (zero) low = high = vdupq_n_s32(0);
    vst1_s8(out->codes + i, vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high))));
    sums[i / 16] += vaddvq_s32(vaddq_s32(low, high));
  }
  out->scale = !finite ? __builtin_nanf("") : zero ? 0.0F : largest * (1.0F / 127.0F);
  for (int i = 0; i < 2; ++i) {
    out->negated_half_sum[i] = -sums[i];
    out->half_sum[i] = out->scale * static_cast<float>(sums[i]);
  }
  out->negated_sum = -(sums[0] + sums[1]);
  out->sum = out->scale * static_cast<float>(sums[0] + sums[1]);
}

void quantize(const float* in, std::int64_t cols, ActivationBlock* out, std::int64_t stride) {
  for (std::int64_t b = 0; b < cols / kBlockColumns; ++b) {
    quantize_block(in + b * kBlockColumns, out + b * stride);
  }
}

}  // namespace

void add_neon_linear(CpuKernels* table) {
  table->linear[static_cast<int>(PanelFormat::kF32)] = dispatch<Float<F32Columns>::Panel>;
  table->linear[static_cast<int>(PanelFormat::kBF16)] = dispatch<Float<Bf16Columns>::Panel>;
  add_grouped_formats<WideningDot>(table);
  table->quantize = quantize;
}

}  // namespace kun
