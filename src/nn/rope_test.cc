#include "nn/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace kun::nn {
namespace {

// Expected values: computed in float64 from the papers' formulas and compared with the divisors
// that GGUF files ship for Llama 3.1 and with DeepSeek's published YaRN code.
void expect_frequency(const Rope& rope, std::size_t pair, double expected) {
  EXPECT_NEAR(rope.frequencies()[pair] / expected, 1.0, 1e-8) << "pair " << pair;
}

TEST(Rope, PlainFrequenciesFallGeometrically) {
  const Rope rope({.width = 64, .theta = 10000.0, .layout = RopeLayout::kHalf, .scaling = {}});
  for (std::size_t i = 0; i < 32; ++i) {
    expect_frequency(rope, i, std::pow(10000.0, -2.0 * static_cast<double>(i) / 64.0));
  }
}

TEST(Rope, LinearScalingDividesEveryFrequency) {
  const Rope rope({.width = 128,
                   .theta = 100000.0,
                   .layout = RopeLayout::kHalf,
                   .scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4.0}});
  expect_frequency(rope, 0, 0.25);
  expect_frequency(rope, 63, std::pow(100000.0, -126.0 / 128.0) / 4.0);
}

TEST(Rope, Llama3ScalingSlowsOnlyLongWavelengths) {
  const Rope rope({.width = 128,
                   .theta = 500000.0,
                   .layout = RopeLayout::kHalf,
                   .scaling = {.kind = RopeScaling::Kind::kLlama3,
                               .factor = 8.0,
                               .original_context = 8192.0,
                               .low_frequency_factor = 1.0,
                               .high_frequency_factor = 4.0}});
  const std::vector<double> blended{1.207484, 1.553415, 2.026313, 2.694530, 3.684253, 5.257327};
  for (std::size_t i = 0; i < 64; ++i) {
    const double plain = std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0);
    const double divisor = plain / rope.frequencies()[i];
    const double expected = i <= 28 ? 1.0 : (i >= 35 ? 8.0 : blended[i - 29]);
    EXPECT_NEAR(divisor, expected, 1e-6) << "pair " << i;
  }
}

TEST(Rope, Llama3ScalingWithEqualFactorsHasTwoBandsAndNoGap) {
  const Rope rope({.width = 4,
                   .theta = 10000.0,
                   .layout = RopeLayout::kHalf,
                   .scaling = {.kind = RopeScaling::Kind::kLlama3,
                               .factor = 4.0,
                               .original_context = 4.0 * std::numbers::pi,
                               .low_frequency_factor = 2.0,
                               .high_frequency_factor = 2.0}});
  // The wavelength of pair 0, 2 pi, is exactly the border: neither shorter nor longer.
  expect_frequency(rope, 0, 0.25);
  expect_frequency(rope, 1, 0.01 / 4.0);
}

TEST(Rope, YarnMatchesDeepSeekV3) {
  const Rope rope(
      {.width = 64,
       .theta = 10000.0,
       .layout = RopeLayout::kInterleaved,
       .scaling = {.kind = RopeScaling::Kind::kYarn, .factor = 40.0, .original_context = 4096.0}});
  expect_frequency(rope, 0, 1.0);
  expect_frequency(rope, 10, 0.0562341325);
  expect_frequency(rope, 11, 0.0390069266);
  expect_frequency(rope, 22, 0.000177827941);
  expect_frequency(rope, 23, 3.33380358e-05);
  expect_frequency(rope, 31, 3.33380358e-06);
}

TEST(Rope, YarnMatchesQwen3Distill) {
  const Rope rope(
      {.width = 128,
       .theta = 1e6,
       .layout = RopeLayout::kHalf,
       .scaling = {.kind = RopeScaling::Kind::kYarn, .factor = 4.0, .original_context = 32768.0}});
  expect_frequency(rope, 23, 0.00697830585);
  expect_frequency(rope, 24, 0.00537532149);
  expect_frequency(rope, 40, 4.44569853e-05);
  expect_frequency(rope, 63, 3.1023444e-07);
}

TEST(Rope, YarnMatchesCompressedLayersOfDeepSeekV4) {
  const Rope rope(
      {.width = 64,
       .theta = 160000.0,
       .layout = RopeLayout::kInterleaved,
       .scaling = {.kind = RopeScaling::Kind::kYarn, .factor = 16.0, .original_context = 65536.0}});
  expect_frequency(rope, 15, 0.00363553858);
  expect_frequency(rope, 16, 0.002265625);
  expect_frequency(rope, 24, 1.953125e-05);
  expect_frequency(rope, 25, 5.37231267e-06);
  expect_frequency(rope, 31, 5.68052904e-07);
}

// YaRN's frequency of one pair in long double, from the paper's formulas.
long double yarn_frequency(long double width, long double theta, long double factor,
                           long double original, int pair) {
  const auto index_of = [&](long double turns) {
    return width * std::log(original / (turns * 2.0L * std::numbers::pi_v<long double>)) /
           (2.0L * std::log(theta));
  };
  const long double low = std::max(std::floor(index_of(32.0L)), 0.0L);
  const long double high = std::min(std::ceil(index_of(1.0L)), width - 1.0L);
  const long double ramp = std::clamp((pair - low) / (high - low), 0.0L, 1.0L);
  const long double plain = std::pow(theta, -2.0L * pair / width);
  return plain / factor * ramp + plain * (1.0L - ramp);
}

void expect_exact_angles(double theta, double factor, double original) {
  const Rope rope(
      {.width = 64,
       .theta = theta,
       .layout = RopeLayout::kInterleaved,
       .scaling = {
           .kind = RopeScaling::Kind::kYarn, .factor = factor, .original_context = original}});
  // Around the original length, and as far beyond as the models go.
  const std::vector<std::int32_t> positions{0,     1,     4095,   4096,   4097,   65535,
                                            65536, 99991, 131072, 159999, 160000, 163839};
  const std::int64_t count = std::ssize(positions);
  std::vector<float> values(static_cast<std::size_t>(count) * 64);
  rope.fill(positions,
            TensorView(reinterpret_cast<std::byte*>(values.data()), DType::kF32, {count, 32, 2}));
  for (std::size_t p = 0; p < positions.size(); ++p) {
    for (std::size_t i = 0; i < 32; ++i) {
      const long double angle =
          positions[p] * yarn_frequency(64.0L, theta, factor, original, static_cast<int>(i));
      EXPECT_NEAR(values[p * 64 + 2 * i], static_cast<double>(std::cos(angle)), 1e-7)
          << "position " << positions[p] << ", pair " << i;
      EXPECT_NEAR(values[p * 64 + 2 * i + 1], static_cast<double>(std::sin(angle)), 1e-7)
          << "position " << positions[p] << ", pair " << i;
    }
  }
}

TEST(Rope, YarnAnglesStayExactBeyondTheOriginalContext) {
  expect_exact_angles(10000.0, 40.0, 4096.0);    // V2, V3, V3.2
  expect_exact_angles(160000.0, 16.0, 65536.0);  // V4's compressed layers
}

TEST(Rope, TurnsBackWhatItTurned) {
  const Rope rope({.width = 4, .theta = 100.0, .layout = RopeLayout::kHalf, .scaling = {}});
  const std::vector<std::int32_t> positions{7};
  std::vector<float> there(4);
  std::vector<float> back(4);
  rope.fill(positions,
            TensorView(reinterpret_cast<std::byte*>(there.data()), DType::kF32, {1, 2, 2}));
  rope.fill_back(positions,
                 TensorView(reinterpret_cast<std::byte*>(back.data()), DType::kF32, {1, 2, 2}));
  for (std::size_t i = 0; i < 4; i += 2) {
    EXPECT_EQ(back[i], there[i]);
    EXPECT_EQ(back[i + 1], -there[i + 1]);
  }
}

TEST(Rope, AnglesStayExactFarOut) {
  const Rope rope({.width = 64, .theta = 10000.0, .layout = RopeLayout::kHalf, .scaling = {}});
  const std::vector<std::int32_t> positions{0, 1, 163839};
  std::vector<float> values(3 * 32 * 2);
  rope.fill(positions,
            TensorView(reinterpret_cast<std::byte*>(values.data()), DType::kF32, {3, 32, 2}));
  EXPECT_FLOAT_EQ(values[0], 1.0F);
  EXPECT_FLOAT_EQ(values[1], 0.0F);
  for (std::size_t i = 0; i < 32; ++i) {
    const long double angle = 163839.0L * std::pow(10000.0L, -2.0L * i / 64.0L);
    EXPECT_NEAR(values[2 * 64 + 2 * i], static_cast<double>(std::cos(angle)), 1e-7);
    EXPECT_NEAR(values[2 * 64 + 2 * i + 1], static_cast<double>(std::sin(angle)), 1e-7);
  }
}

TEST(Rope, AttentionFactorScalesCosineAndSine) {
  const Rope rope({.width = 4,
                   .theta = 10000.0,
                   .layout = RopeLayout::kHalf,
                   .scaling = {.kind = RopeScaling::Kind::kYarn,
                               .factor = 4.0,
                               .original_context = 64.0,
                               .attention_factor = 1.5}});
  const std::vector<std::int32_t> positions{0};
  std::vector<float> values(4);
  rope.fill(positions,
            TensorView(reinterpret_cast<std::byte*>(values.data()), DType::kF32, {1, 2, 2}));
  EXPECT_FLOAT_EQ(values[0], 1.5F);
  EXPECT_FLOAT_EQ(values[1], 0.0F);
}

}  // namespace
}  // namespace kun::nn
