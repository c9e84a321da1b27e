// What each stored form becomes in memory, and how far that is from what the file means.
#include "backends/cpu/pack_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backends/cpu/packed_image.h"
#include "backends/cpu/random_weights.h"
#include "tensor/plane_values.h"

namespace kun {
namespace {

// Random codes and planes of one layout; groups of 64 columns unless told otherwise.
struct RandomPlanes {
  RandomPlanes(WeightFormat format, std::int64_t rows, std::int64_t cols, ScaleType scales,
               ZeroPlane zeros = {}, std::int64_t group = 64) {
    std::mt19937_64 random(7);
    view.format = format;
    view.rows = rows;
    view.cols = cols;
    view.planes.stored_rows = rows;
    codes.resize(static_cast<std::size_t>(rows * view.row_bytes()));
    for (std::byte& byte : codes) byte = static_cast<std::byte>(random() % 120);
    view.data = codes;
    view.planes.group_columns = group;
    view.planes.group_count = (cols + group - 1) / group;
    const std::int64_t count = rows * view.planes.group_count;
    scale_bytes.resize(static_cast<std::size_t>(count * size_bytes(scales)));
    for (std::int64_t i = 0; i < count; ++i) {
      put_scale(scales, static_cast<std::size_t>(i), 0.01F + 1e-5F * static_cast<float>(i));
    }
    view.planes.scales = {scale_bytes, scales, 1, view.planes.group_count, 1};
    view.planes.zeros = zeros;
    if (zeros.layout != ZeroLayout::kConstant) {
      zero_bytes.resize(static_cast<std::size_t>(count * code_bits(format) / 8));
      for (std::byte& byte : zero_bytes) byte = static_cast<std::byte>(random() % 256);
      view.planes.zeros.data = zero_bytes;
    }
  }

  WeightView view;
  std::vector<std::byte> codes;
  std::vector<std::byte> scale_bytes;
  std::vector<std::byte> zero_bytes;

 private:
  void put_scale(ScaleType type, std::size_t i, float value) {
    const std::uint16_t half = f32_to_f16(value);
    const std::uint16_t brain = f32_to_bf16(value);
    const std::uint8_t exponent = 120;
    switch (type) {
      case ScaleType::kF32: std::memcpy(&scale_bytes[4 * i], &value, 4); break;
      case ScaleType::kF16: std::memcpy(&scale_bytes[2 * i], &half, 2); break;
      case ScaleType::kBF16: std::memcpy(&scale_bytes[2 * i], &brain, 2); break;
      default: std::memcpy(&scale_bytes[i], &exponent, 1);
    }
  }
};

// The largest distance between a panel's meaning and the file's, in units of the scale.
double largest_error(const WeightView& view, PanelFormat format) {
  const PanelTraits traits = panel_traits(format);
  std::vector<float> exact(static_cast<std::size_t>(view.cols));
  double error = 0;
  for (std::int64_t row = 0; row < view.rows; ++row) {
    dequantize_row(view, row, exact.data());
    for (std::int64_t b = 0; b < view.cols / kBlockColumns; ++b) {
      UnpackedBlock block{};
      unpack_planes(view, row, b, format, &block);
      for (int i = 0; i < kBlockColumns; ++i) {
        const Affine line = affine(block, traits, i / traits.group);
        const double value = static_cast<double>(line.scale) * block.codes[i] + line.min;
        const double wanted = exact[static_cast<std::size_t>(b * kBlockColumns + i)];
        error = std::max(error, std::fabs(value - wanted) / line.scale);
      }
    }
  }
  return error;
}

using W = WeightFormat;
using S = ScaleType;
using T = WeightTarget;
using P = PanelFormat;

const ZeroPlane kEight{ZeroLayout::kConstant, {}, 8};
const ZeroPlane kMiddle{ZeroLayout::kConstant, {}, 128};
const ZeroPlane kGptqZeros{ZeroLayout::kGptq, {}, 1};
const ZeroPlane kAwqZeros{ZeroLayout::kAwq, {}, 0};
const ZeroPlane kColumnZeros{ZeroLayout::kColumns, {}, 0};

struct Case {
  const char* name;
  WeightFormat format;
  ScaleType scales;
  ZeroPlane zeros;
  std::int64_t group;
  WeightTarget target;
  PanelFormat panel;
  double error;  // largest, in scales
};

// A product of two floats may round where the dequantizer's does not: 2^-24 of 128 scales.
constexpr double kFloat = 1e-5;
// The minimum z * scale is rounded to the 11 bits of an F16; z <= 15, or 128.
constexpr double kMin4 = 15 * 0x1p-11;
constexpr double kMin8 = 128 * 0x1p-11;

const Case kCases[] = {
    {"symmetric GPTQ", W::kGptqInt4, S::kF16, kEight, 64, T::kAuto, P::k4F16, kFloat},
    {"GPTQ", W::kGptqInt4, S::kF16, kGptqZeros, 64, T::kAuto, P::k4F16Min, kMin4},
    {"GPTQ as stored", W::kGptqInt4, S::kF16, kGptqZeros, 64, T::kAsStored, P::k8F16, kFloat},
    {"AWQ", W::kAwqInt4, S::kF16, kAwqZeros, 128, T::kAuto, P::k4F16Min, kMin4},
    {"AWQ as stored", W::kAwqInt4, S::kF16, kAwqZeros, 32, T::kAsStored, P::k8F16, kFloat},
    {"packed", W::kRowInt4, S::kBF16, kEight, 64, T::kAuto, P::k4F16, kFloat},
    {"packed, F32 scales", W::kRowInt4, S::kF32, kEight, 64, T::kAsStored, P::k8F32, kFloat},
    {"packed, zeros", W::kRowInt4, S::kBF16, kColumnZeros, 64, T::kAuto, P::k4F16Min, kMin4},
    {"8-bit GPTQ", W::kGptqInt8, S::kF16, kGptqZeros, 64, T::kAuto, P::k8F16Min, kMin8},
    {"symmetric 8-bit", W::kRowInt8, S::kF16, kMiddle, 64, T::kAuto, P::k8F16, kFloat},
    {"signed bytes", W::kInt8, S::kF32, {}, 256, T::kAuto, P::k8F32, kFloat},
    {"FP4", W::kE2M1, S::kE8M0, {}, 32, T::kAuto, P::k8F32, kFloat},
    {"NVFP4", W::kE2M1, S::kE8M0, {}, 16, T::kAuto, P::k8F32Group16, kFloat},
};

TEST(PackPlan, KeepsTheCodesOfEveryLayout) {
  for (const Case& c : kCases) {
    const RandomPlanes weights(c.format, 40, 256, c.scales, c.zeros, c.group);
    const PackPlan plan = plan_pack(weights.view, {.target = c.target});
    EXPECT_EQ(plan.format, c.panel) << c.name;
    EXPECT_FALSE(plan.quantize) << c.name;
    if (plan.format == c.panel) {
      EXPECT_LE(largest_error(weights.view, plan.format), c.error) << c.name;
    }
  }
}

TEST(PackPlan, FallsBackToBfloat16WhereNoPanelFits) {
  const RandomPlanes narrow(WeightFormat::kGptqInt4, 8, 40, ScaleType::kF16, kEight, 40);
  EXPECT_EQ(plan_pack(narrow.view, {}).format, PanelFormat::kBF16);
  EXPECT_EQ(plan_pack(narrow.view, {.target = WeightTarget::kInt4}).format, PanelFormat::kBF16);
  const RandomPlanes small(WeightFormat::kGptqInt4, 8, 64, ScaleType::kF16, kEight, 8);
  EXPECT_EQ(plan_pack(small.view, {}).format, PanelFormat::kBF16);
  RandomPlanes reordered(WeightFormat::kGptqInt4, 8, 64, ScaleType::kF16, kEight, 32);
  std::vector<std::int32_t> index(64);
  for (std::size_t i = 0; i < 64; ++i) index[i] = static_cast<std::int32_t>(i % 2);
  reordered.view.planes.group_index = std::as_bytes(std::span(index));
  EXPECT_EQ(plan_pack(reordered.view, {}).format, PanelFormat::kBF16);
  const PackPlan slow = plan_pack(reordered.view, {.fast_bf16 = false});
  EXPECT_EQ(slow.format, PanelFormat::k8F16);
  EXPECT_TRUE(slow.quantize);
}

TEST(PackPlan, ServesFp8AsTheMachineMultipliesBest) {
  const RandomPlanes fp8(WeightFormat::kF8E4M3, 40, 256, ScaleType::kF32, {}, 128);
  EXPECT_EQ(plan_pack(fp8.view, {}).format, PanelFormat::kBF16);
  EXPECT_EQ(plan_pack(fp8.view, {.fast_bf16 = false}).format, PanelFormat::k8F16);
  EXPECT_EQ(plan_pack(fp8.view, {.target = WeightTarget::kAsStored, .fast_bf16 = false}).format,
            PanelFormat::kBF16);
  EXPECT_EQ(plan_pack(fp8.view, {.compute = ComputeType::kFloat32}).format, PanelFormat::kF32);
}

TEST(PackPlan, ConvertsToWhatIsAskedForAndSparesWhatIsFragile) {
  RandomWeights wide(WeightFormat::kBF16, 40, 256);
  const auto format = [&](WeightTarget target, WeightRole role) {
    wide.view.role = role;
    return plan_pack(wide.view, {.target = target}).format;
  };
  EXPECT_EQ(format(WeightTarget::kInt8, WeightRole::kOrdinary), PanelFormat::k8F16);
  EXPECT_EQ(format(WeightTarget::kInt4, WeightRole::kOrdinary), PanelFormat::k4F16Min);
  EXPECT_EQ(format(WeightTarget::kInt4, WeightRole::kSensitive), PanelFormat::k8F16);
  EXPECT_EQ(format(WeightTarget::kInt4, WeightRole::kExact), PanelFormat::kBF16);
  EXPECT_EQ(format(WeightTarget::kBF16, WeightRole::kOrdinary), PanelFormat::kBF16);
  const RandomWeights four(WeightFormat::kQ4_K, 40, 256);
  EXPECT_EQ(plan_pack(four.view, {.target = WeightTarget::kInt4}).format, PanelFormat::k4SuperMin);
  EXPECT_EQ(plan_pack(four.view, {.target = WeightTarget::kInt8}).format, PanelFormat::k4SuperMin);
  EXPECT_EQ(plan_pack(four.view, {.target = WeightTarget::kBF16}).format, PanelFormat::kBF16);
  const RandomWeights eight(WeightFormat::kQ8_0, 40, 256);
  EXPECT_EQ(plan_pack(eight.view, {.target = WeightTarget::kInt4}).format, PanelFormat::k4F16Min);
  EXPECT_EQ(plan_pack(eight.view, {.target = WeightTarget::kInt8}).format, PanelFormat::k8F16);
}

// Root mean square of the error over that of the values, N(0, 1).
double relative_error(PanelFormat format) {
  const PanelTraits traits = panel_traits(format);
  const std::vector<float> values = random_floats(32 * 4096, 3);
  double error = 0;
  double square = 0;
  for (std::size_t at = 0; at < values.size(); at += kBlockColumns) {
    UnpackedBlock block{};
    quantize_block(&values[at], format, &block);
    const Affine line = affine(block, traits, 0);
    for (std::size_t i = 0; i < kBlockColumns; ++i) {
      const double miss =
          line.scale * static_cast<float>(block.codes[i]) + line.min - values[at + i];
      error += miss * miss;
      square += static_cast<double>(values[at + i] * values[at + i]);
    }
  }
  return std::sqrt(error / square);
}

TEST(QuantizeBlock, IsAsPreciseAsItsBits) {
  // Uniform rounding of a range r in n steps misses by r / n / sqrt(12); 32 normal values span
  // about 4.1, their largest magnitude is about 2.4.
  EXPECT_LT(relative_error(PanelFormat::k8F16), 2.45 / 127 / std::sqrt(12.0));
  EXPECT_LT(relative_error(PanelFormat::k4F16Min), 4.1 / 15 / std::sqrt(12.0));
  RecordProperty("int8", std::to_string(relative_error(PanelFormat::k8F16)));
  RecordProperty("int4", std::to_string(relative_error(PanelFormat::k4F16Min)));
}

TEST(QuantizeBlock, HandlesConstantsZerosAndWhatIsNoNumber) {
  UnpackedBlock block{};
  std::vector<float> values(kBlockColumns, 0.0F);
  for (const PanelFormat format : {PanelFormat::k8F16, PanelFormat::k4F16Min}) {
    const PanelTraits traits = panel_traits(format);
    std::fill(values.begin(), values.end(), 0.0F);
    quantize_block(values.data(), format, &block);
    EXPECT_EQ(affine(block, traits, 0).scale * block.codes[5] + affine(block, traits, 0).min, 0.0F);
    std::fill(values.begin(), values.end(), -0.25F);
    quantize_block(values.data(), format, &block);
    const float value =
        affine(block, traits, 0).scale * block.codes[5] + affine(block, traits, 0).min;
    EXPECT_NEAR(value, -0.25F, 2e-4F);
    values[7] = std::nanf("");
    quantize_block(values.data(), format, &block);
    EXPECT_TRUE(std::isnan(affine(block, traits, 0).scale));
    values[7] = INFINITY;
    quantize_block(values.data(), format, &block);
    EXPECT_TRUE(std::isnan(affine(block, traits, 0).scale));
  }
}

// The way for BF16 as it is stored, and the way for all floats; rows and columns that fill nothing.
TEST(PackMatrix, MovesBfloat16AsItWouldRoundIt) {
  ThreadPool pool(2);
  Slabs slabs;
  for (const std::int64_t cols : {1, 2, 31, 64, 95, 514}) {
    const RandomWeights narrow(WeightFormat::kBF16, 45, cols);
    std::vector<float> values(static_cast<std::size_t>(45 * cols));
    for (std::int64_t r = 0; r < 45; ++r) dequantize_row(narrow.view, r, values.data() + r * cols);
    WeightView wide;
    wide.rows = 45;
    wide.cols = cols;
    wide.data = std::as_bytes(std::span(values));
    const PackSettings settings{.target = WeightTarget::kBF16};
    const auto moved = pack_matrix({&narrow.view, 1}, settings, pool, slabs);
    const auto rounded = pack_matrix({&wide, 1}, settings, pool, slabs);
    ASSERT_TRUE(moved.has_value() && rounded.has_value());
    const auto& a = static_cast<const CpuPackedMatrix&>(**moved);
    const auto& b = static_cast<const CpuPackedMatrix&>(**rounded);
    ASSERT_EQ(a.segments.front().format, PanelFormat::kBF16);
    ASSERT_EQ(a.bytes, b.bytes);
    EXPECT_EQ(std::memcmp(a.data.get(), b.data.get(), static_cast<std::size_t>(a.bytes)), 0)
        << cols;
  }
}

TEST(PackMatrix, TakesNoMoreMemoryThanTheFile) {
  EXPECT_EQ(panel_bytes(PanelFormat::k6Super16, 1536), 6 * 210 * kPanelRows);         // Q6_K
  EXPECT_EQ(panel_bytes(PanelFormat::k6SuperMin, 1536), 6 * (210 + 2) * kPanelRows);  // Q5_K
  EXPECT_EQ(panel_bytes(PanelFormat::k4SuperMin, 1536), 6 * (144 + 4) * kPanelRows);  // Q4_K
}

TEST(PackedImage, ComesBackAsTheSameBytesAndRefusesChangedOnes) {
  ThreadPool pool(2);
  Slabs slabs;
  const RandomWeights first(WeightFormat::kQ4_K, 70, 512);
  const RandomWeights second(WeightFormat::kBF16, 2100, 512);
  const WeightView views[] = {first.view, second.view};
  const auto packed = pack_matrix(views, PackSettings{}, pool, slabs);
  ASSERT_TRUE(packed.has_value());
  const auto& matrix = static_cast<const CpuPackedMatrix&>(**packed);
  PackedImage image = image_of(matrix, pool);
  EXPECT_GT(image.data.size(), std::size_t{1} << 20);  // more than one piece
  const auto back = matrix_of(image, pool, slabs);
  ASSERT_TRUE(back.has_value()) << back.error().message();
  const auto& copy = static_cast<const CpuPackedMatrix&>(**back);
  EXPECT_EQ(copy.rows, matrix.rows);
  EXPECT_EQ(copy.cols, matrix.cols);
  ASSERT_EQ(copy.bytes, matrix.bytes);
  EXPECT_EQ(std::memcmp(copy.data.get(), matrix.data.get(), image.data.size()), 0);
  ASSERT_EQ(copy.segments.size(), 2U);
  EXPECT_EQ(copy.segments[1].first_row, 70);

  std::vector<std::byte> bytes(image.data.begin(), image.data.end());
  bytes[bytes.size() / 2] ^= std::byte{1};
  PackedImage changed = image;
  changed.data = bytes;
  EXPECT_EQ(matrix_of(changed, pool, slabs).error().code(), StatusCode::kDataLoss);
  changed = image;
  changed.data = image.data.first(image.data.size() - 64);
  EXPECT_EQ(matrix_of(changed, pool, slabs).error().code(), StatusCode::kDataLoss);
  for (std::size_t i = 0; i < image.layout.size(); ++i) {
    changed = image;
    changed.layout[i] = static_cast<char>(changed.layout[i] ^ 1);
    const auto result = matrix_of(changed, pool, slabs);
    if (result.has_value()) {  // another row count in the same panels
      EXPECT_LT((*result)->rows, matrix.rows + kPanelRows);
    } else {
      EXPECT_EQ(result.error().code(), StatusCode::kDataLoss) << i;
    }
  }
}

TEST(PackedImage, NamesEverythingThatPackingDependsOn) {
  const std::string name = packing_name({});
  EXPECT_EQ(name, packing_name({}));
  EXPECT_NE(name, packing_name({.target = WeightTarget::kInt4}));
  EXPECT_NE(name, packing_name({.fast_bf16 = false}));
  EXPECT_NE(name, packing_name({.compute = ComputeType::kFloat32}));
}

}  // namespace
}  // namespace kun
