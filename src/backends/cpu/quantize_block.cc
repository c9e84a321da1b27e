// Quantizing while packing: 32 weights at a time, with loops that a compiler can turn into vector
// code for any machine.
#include <algorithm>
#include <cmath>

#include "backends/cpu/pack_plan.h"
#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

constexpr float kF16Max = 65504.0F;
constexpr int kSteps = 15;  // between the lowest and the highest 4-bit code

float clamp_f16(float value) {
  return std::clamp(value, -kF16Max, kF16Max);
}

// Rounds to nearest even, for |x| < 2^22.
float round_small(float x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

void to_int8(const float* x, UnpackedBlock* out) {
  float largest = 0.0F;
  for (int i = 0; i < kBlockColumns; ++i) largest = std::max(largest, std::fabs(x[i]));
  out->scale_f16 = f32_to_f16(clamp_f16(largest / 127.0F));
  const float scale = f16_to_f32(out->scale_f16);
  const float inverse = scale > 0.0F ? 1.0F / scale : 0.0F;
  for (int i = 0; i < kBlockColumns; ++i) {
    const float code = round_small(std::clamp(x[i] * inverse, -127.0F, 127.0F));
    out->codes[i] = static_cast<std::int8_t>(code);
  }
}

// A line through codes 0..15: x = scale * code + min.
struct Line {
  float scale;
  float min;
};

Line rounded(Line line) {
  return {f16_to_f32(f32_to_f16(clamp_f16(line.scale))),
          f16_to_f32(f32_to_f16(clamp_f16(line.min)))};
}

// The codes nearest to x on a line, and what they miss.
float encode(const float* x, Line line, float* codes) {
  const float inverse = line.scale > 0.0F ? 1.0F / line.scale : 0.0F;
  float error = 0.0F;
  for (int i = 0; i < kBlockColumns; ++i) {
    const float place = (x[i] - line.min) * inverse;
    codes[i] = round_small(std::min(std::max(place, 0.0F), static_cast<float>(kSteps)));
    const float miss = line.scale * codes[i] + line.min - x[i];
    error += miss * miss;
  }
  return error;
}

// Least squares for given codes; `fallback` when they are all the same.
Line fit(const float* x, const float* codes, Line fallback) {
  float sum_c = 0.0F;
  float sum_x = 0.0F;
  float sum_cc = 0.0F;
  float sum_cx = 0.0F;
  for (int i = 0; i < kBlockColumns; ++i) {
    sum_c += codes[i];
    sum_x += x[i];
    sum_cc += codes[i] * codes[i];
    sum_cx += codes[i] * x[i];
  }
  constexpr auto kCount = static_cast<float>(kBlockColumns);
  const float spread = kCount * sum_cc - sum_c * sum_c;
  if (!(spread > 0.0F)) return fallback;
  const float scale = (kCount * sum_cx - sum_c * sum_x) / spread;
  if (!(scale > 0.0F)) return fallback;
  return {scale, (sum_x - scale * sum_c) / kCount};
}

void to_int4(const float* x, UnpackedBlock* out) {
  float low = x[0];
  float high = x[0];
  for (int i = 1; i < kBlockColumns; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  // The full range, and ranges that cut its ends: most weights win what the outermost lose.
  constexpr float kShares[] = {1.0F, 0.92F, 0.84F};
  float best_codes[kBlockColumns] = {};
  Line best = rounded({(high - low) / kSteps, low});
  float best_error = encode(x, best, best_codes);
  for (const float share : kShares) {
    const float cut = 0.5F * (1.0F - share) * (high - low);
    const Line start{share * (high - low) / kSteps, low + cut};
    float codes[kBlockColumns];
    encode(x, start, codes);
    const Line line = rounded(fit(x, codes, start));
    const float error = encode(x, line, codes);
    if (!(error < best_error)) continue;
    best_error = error;
    best = line;
    std::copy_n(codes, kBlockColumns, best_codes);
  }
  out->scale_f16 = f32_to_f16(best.scale);
  out->min_f16 = f32_to_f16(best.min);
  for (int i = 0; i < kBlockColumns; ++i) out->codes[i] = static_cast<std::int8_t>(best_codes[i]);
}

}  // namespace

void quantize_block(const float* values, PanelFormat format, UnpackedBlock* out) {
  float sum = 0.0F;
  for (int i = 0; i < kBlockColumns; ++i) sum += values[i] * 0.0F;
  if (sum != 0.0F) {  // an infinity or NaN among them: the whole block is NaN, so that it is seen
    std::fill_n(out->codes, kBlockColumns, std::int8_t{0});
    out->scale_f16 = 0x7E00U;
    out->min_f16 = 0x7E00U;
    return;
  }
  CHECK(format == PanelFormat::k8F16 || format == PanelFormat::k4F16Min);
  if (format == PanelFormat::k8F16) {
    to_int8(values, out);
  } else {
    to_int4(values, out);
  }
}

}  // namespace kun
