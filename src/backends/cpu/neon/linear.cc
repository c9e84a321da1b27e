// The linear kernels of ARMv8.0, and the quantizer all NEON tables share.
#include "backends/cpu/code_scale.h"
#include "backends/cpu/neon/floats.h"
#include "backends/cpu/neon/grouped.h"

namespace kun {
namespace {

// Products are widened to 16 bits, 8 rows and columns at a time: vectors of two rows. Two products
// of 8-bit codes fit 16 bits (2 * 128 * 127 < 2^15), and so do all that a group of narrower codes
// adds to one sum (8 * 31 * 127 < 2^15 in groups of 32 columns, 4 * 63 * 127 < 2^15 in groups of
// 16), which are therefore widened once a group.
struct WideningDot {
  static constexpr int kVectors = 2;

  static constexpr int slices(int bits, int tokens) {
    return tokens == 1 ? 4 : tokens <= 3 || (bits < 8 && tokens == 4) ? 2 : 1;
  }

  template <int kBits>
  struct Sum;

  template <int kBits, int kLane, int kTokens>
  [[gnu::always_inline]] static void add_octet(Sum<kBits> (&sums)[kTokens], Octet weights,
                                               const int8x16_t (&x)[kTokens]) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const int32x4_t words = vreinterpretq_s32_s8(x[t]);
      sums[t].add(weights, vreinterpretq_s8_s32(vdupq_laneq_s32(words, kLane)),
                  vreinterpretq_s8_s32(vdupq_laneq_s32(words, kLane + 1)));
    }
  }
};

template <int kBits>
struct WideningDot::Sum {
  int16x8_t low;  // [row][4 columns] of rows 0 and 1
  int16x8_t high;
  int32x4_t first;

  static Sum start(int32x4_t value) { return {vdupq_n_s16(0), vdupq_n_s16(0), value}; }

  [[gnu::always_inline]] void add(Octet weights, int8x16_t a, int8x16_t b) {
    low = vmlal_s8(low, vget_low_s8(weights.low), vget_low_s8(a));
    high = vmlal_high_s8(high, weights.low, a);
    low = vmlal_s8(low, vget_low_s8(weights.high), vget_low_s8(b));
    high = vmlal_high_s8(high, weights.high, b);
  }

  int32x4_t total() const {
    return vaddq_s32(first, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
  }
};

template <>
struct WideningDot::Sum<8> {
  int32x4_t low;  // [row][half of 4 columns] of rows 0 and 1
  int32x4_t high;
  int32x4_t first;

  static Sum start(int32x4_t value) { return {vdupq_n_s32(0), vdupq_n_s32(0), value}; }

  [[gnu::always_inline]] void add(Octet weights, int8x16_t a, int8x16_t b) {
    int16x8_t products = vmull_s8(vget_low_s8(weights.low), vget_low_s8(a));
    products = vmlal_s8(products, vget_low_s8(weights.high), vget_low_s8(b));
    low = vpadalq_s16(low, products);
    products = vmull_high_s8(weights.low, a);
    products = vmlal_high_s8(products, weights.high, b);
    high = vpadalq_s16(high, products);
  }

  int32x4_t total() const { return vaddq_s32(first, vpaddq_s32(low, high)); }
};

void quantize_block(const float* in, ActivationBlock* out) {
  uint32x4_t largest_bits = vdupq_n_u32(0);
  for (int i = 0; i < kBlockColumns; i += 4) {
    const uint32x4_t bits = vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(in + i)));
    largest_bits = vmaxq_u32(largest_bits, bits);
  }
  const CodeScale by = code_scale(vmaxvq_u32(largest_bits));
  int sums[2] = {0, 0};
  for (int i = 0; i < kBlockColumns; i += 8) {
    int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(in + i), by.inverse));
    int32x4_t high = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(in + i + 4), by.inverse));
    if (by.is_zero) low = high = vdupq_n_s32(0);
    vst1_s8(out->codes + i, vmovn_s16(vcombine_s16(vmovn_s32(low), vmovn_s32(high))));
    sums[i / 16] += vaddvq_s32(vaddq_s32(low, high));
  }
  store_factors(out, by.scale, sums);
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
  add_grouped_formats<BySlices<WideningDot>::Grouped>(table);
  table->quantize = quantize;
}

}  // namespace kun
