#include "nn/rope.h"

#include <gtest/gtest.h>

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
