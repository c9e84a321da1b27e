#include "backends/cpu/unpack.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backends/cpu/random_weights.h"

namespace kun {
namespace {

class Unpack : public testing::TestWithParam<WeightFormat> {};

// Scales and mins are exact in float; what differs from the dequantizer is at most the rounding of
// the one sum (and, for NVFP4, of the tensor scale's product).
TEST_P(Unpack, MeansWhatTheDequantizerSays) {
  const std::int64_t rows = 7;
  const std::int64_t cols = 512;
  const RandomWeights weights(GetParam(), rows, cols);
  const auto format = grouped_panel_format(GetParam());
  ASSERT_TRUE(format.has_value());
  const PanelTraits traits = panel_traits(*format);
  std::vector<float> expected(cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    dequantize_row(weights.view, r, expected.data());
    const std::byte* row = weights.bytes.data() + r * weights.view.row_bytes();
    for (std::int64_t b = 0; b < cols / kBlockColumns; ++b) {
      UnpackedBlock block{};
      unpack_block(GetParam(), row, b, weights.view.tensor_scale, &block);
      for (int i = 0; i < kBlockColumns; ++i) {
        const Affine map = affine(block, traits, i / traits.group);
        const float product = map.scale * block.codes[i];
        const float bound = 2 * std::ldexp(std::fabs(product) + std::fabs(map.min), -24);
        const auto at = static_cast<std::size_t>(b * kBlockColumns + i);
        ASSERT_NEAR(product + map.min, expected[at], bound) << r << ' ' << at;
        if (traits.bits < 8) {
          ASSERT_GE(block.codes[i] + code_offset(traits), 0);
          ASSERT_LE(block.codes[i] + code_offset(traits), code_max(traits));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Unpack,
                         testing::Values(WeightFormat::kQ8_0, WeightFormat::kQ4_0,
                                         WeightFormat::kQ4_1, WeightFormat::kQ5_0,
                                         WeightFormat::kQ5_1, WeightFormat::kQ2_K,
                                         WeightFormat::kQ3_K, WeightFormat::kQ4_K,
                                         WeightFormat::kQ5_K, WeightFormat::kQ6_K,
                                         WeightFormat::kIQ4_NL, WeightFormat::kIQ4_XS,
                                         WeightFormat::kMXFP4, WeightFormat::kNVFP4),
                         [](const auto& format) { return std::string(name(format.param)); });

}  // namespace
}  // namespace kun
