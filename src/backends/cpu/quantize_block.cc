// Quantizing while packing, 32 weights at a time. It runs on every thread while a model loads, so
// sums go four wide: a chain of single additions would take longer than all else.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/pack_plan.h"
#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

constexpr float kF16Max = 65504.0F;
constexpr float kSteps = 15;  // between the lowest and the highest 4-bit code

float clamp_f16(float value) {
  return std::clamp(value, -kF16Max, kF16Max);
}

// Four floats in a register; the compiler knows how on every machine.
using Lanes = float __attribute__((vector_size(16)));
using Integers = std::int32_t __attribute__((vector_size(16)));
constexpr int kLanes = 4;
constexpr int kParts = kBlockColumns / kLanes;

struct Block {
  Lanes parts[kParts];
};

Block load(const float* x) {
  Block block;
  std::memcpy(&block, x, sizeof(block));
  return block;
}

Lanes all(float x) {
  return Lanes{x, x, x, x};
}
Lanes lower(Lanes a, Lanes b) {
  return a < b ? a : b;
}
Lanes higher(Lanes a, Lanes b) {
  return a > b ? a : b;
}
float sum(Lanes x) {
  return (x[0] + x[1]) + (x[2] + x[3]);
}

// Rounds to nearest even, for |x| < 2^22.
Lanes round_small(Lanes x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23
  return (x + kMagic) - kMagic;
}

void put_codes(const Block& codes, std::int8_t* out) {
  for (int i = 0; i < kParts; ++i) {
    const auto whole = __builtin_convertvector(codes.parts[i], Integers);
    for (int l = 0; l < kLanes; ++l) out[i * kLanes + l] = static_cast<std::int8_t>(whole[l]);
  }
}

void to_int8(const float* values, UnpackedBlock* out) {
  Block x = load(values);
  Lanes largest{};
  for (const Lanes& part : x.parts) largest = higher(largest, higher(part, -part));
  const float most = std::max(std::max(largest[0], largest[1]), std::max(largest[2], largest[3]));
  out->scale_f16 = f32_to_f16(clamp_f16(most / 127.0F));
  const float scale = f16_to_f32(out->scale_f16);
  const Lanes inverse = all(scale > 0.0F ? 1.0F / scale : 0.0F);
  for (Lanes& part : x.parts) {
    part = round_small(lower(higher(part * inverse, all(-127.0F)), all(127.0F)));
  }
  put_codes(x, out->codes);
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

// The codes nearest to x on a line, and the sum of squares of what they miss.
float encode(const Block& x, Line line, Block& codes) {
  const Lanes scale = all(line.scale);
  const Lanes inverse = all(line.scale > 0.0F ? 1.0F / line.scale : 0.0F);
  const Lanes min = all(line.min);
  Lanes error{};
  for (int i = 0; i < kParts; ++i) {
    const Lanes place = (x.parts[i] - min) * inverse;
    codes.parts[i] = round_small(lower(higher(place, all(0.0F)), all(kSteps)));
    const Lanes miss = scale * codes.parts[i] + min - x.parts[i];
    error += miss * miss;
  }
  return sum(error);
}

// Least squares for given codes; `fallback` when they are all the same.
Line fit(const Block& x, const Block& codes, Line fallback) {
  Lanes c{};
  Lanes v{};
  Lanes cc{};
  Lanes cv{};
  for (int i = 0; i < kParts; ++i) {
    c += codes.parts[i];
    v += x.parts[i];
    cc += codes.parts[i] * codes.parts[i];
    cv += codes.parts[i] * x.parts[i];
  }
  constexpr auto kCount = static_cast<float>(kBlockColumns);
  const float spread = kCount * sum(cc) - sum(c) * sum(c);
  if (!(spread > 0.0F)) return fallback;
  const float scale = (kCount * sum(cv) - sum(c) * sum(v)) / spread;
  if (!(scale > 0.0F)) return fallback;
  return {scale, (sum(v) - scale * sum(c)) / kCount};
}

void to_int4(const float* values, UnpackedBlock* out) {
  const Block x = load(values);
  Lanes lows = x.parts[0];
  Lanes highs = x.parts[0];
  for (int i = 1; i < kParts; ++i) {
    lows = lower(lows, x.parts[i]);
    highs = higher(highs, x.parts[i]);
  }
  const float low = std::min(std::min(lows[0], lows[1]), std::min(lows[2], lows[3]));
  const float high = std::max(std::max(highs[0], highs[1]), std::max(highs[2], highs[3]));
  // The full range, and ranges that cut its ends: most weights win what the outermost lose.
  constexpr float kShares[] = {1.0F, 0.92F, 0.84F};
  Block best_codes{};
  Line best = rounded({(high - low) / kSteps, low});
  float best_error = encode(x, best, best_codes);
  for (const float share : kShares) {
    const float cut = 0.5F * (1.0F - share) * (high - low);
    const Line start{share * (high - low) / kSteps, low + cut};
    Block codes{};
    encode(x, start, codes);
    const Line line = rounded(fit(x, codes, start));
    const float error = encode(x, line, codes);
    if (!(error < best_error)) continue;
    best_error = error;
    best = line;
    best_codes = codes;
  }
  out->scale_f16 = f32_to_f16(best.scale);
  out->min_f16 = f32_to_f16(best.min);
  put_codes(best_codes, out->codes);
}

}  // namespace

void quantize_block(const float* values, PanelFormat format, UnpackedBlock* out) {
  Lanes zeros{};
  for (const Lanes& part : load(values).parts) zeros += part * 0.0F;
  if (sum(zeros) !=
      0.0F) {  // an infinity or NaN among them: the whole block is NaN, so that it is seen
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
