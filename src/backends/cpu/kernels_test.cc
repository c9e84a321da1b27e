// Every table this machine can run agrees with the reference, entry by entry, on the same packed
// bytes and activations: what differs is only the order of float roundings, whose bound is derived.
#include "backends/cpu/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backends/cpu/input_tiles.h"
#include "backends/cpu/packed_matrix.h"
#include "backends/cpu/random_weights.h"
#include "backends/cpu/select.h"

namespace kun {
namespace {

constexpr double kUnit = 0x1p-24;  // half a unit in the last place, relative

class EveryKernelTable : public testing::TestWithParam<const CpuKernels*> {
 protected:
  const CpuKernels& kernels() const { return *GetParam(); }
  const CpuKernels& reference() const { return reference_kernels(); }
};
INSTANTIATE_TEST_SUITE_P(Cpu, EveryKernelTable, testing::ValuesIn(supported_kernels()),
                         [](const auto& table) { return std::string(table.param->name); });

enum class Values { kNormal, kOutliers, kTiny, kHuge, kZeroBlocks };

std::vector<float> make_values(Values kind, std::int64_t count, unsigned seed) {
  auto values = random_floats(count, seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (kind) {
      case Values::kNormal: break;
      case Values::kOutliers: values[i] *= i % 61 == 0 ? 100.0F : 1.0F; break;
      case Values::kTiny: values[i] *= 1e-39F; break;
      case Values::kHuge: values[i] *= 1e15F; break;
      case Values::kZeroBlocks: values[i] *= i / 32 % 2 == 0 ? 0.0F : 1.0F; break;
    }
  }
  return values;
}

constexpr Values kAllValues[] = {Values::kNormal, Values::kOutliers, Values::kTiny, Values::kHuge,
                                 Values::kZeroBlocks};

struct Prepared {
  std::vector<ActivationBlock> blocks;
  std::vector<float> floats;  // [col][token], rounded to BF16 where the table does that
  std::vector<std::uint32_t> pairs;
  std::vector<std::byte> lines;
};

Prepared prepare(const CpuKernels& kernels, const std::vector<float>& in, std::int64_t cols,
                 int tokens, bool round) {
  Prepared prepared;
  const auto count = static_cast<std::size_t>(tokens);
  prepared.blocks.resize(static_cast<std::size_t>((cols + kBlockColumns - 1) / kBlockColumns) *
                         count);
  prepared.floats.resize(static_cast<std::size_t>(cols) * count);
  prepared.pairs.resize(static_cast<std::size_t>((cols + 1) / 2) * count);
  prepared.lines.resize(static_cast<std::size_t>(input_bytes(InputForm::kBf16Lines, cols)) * count);
  for (int t = 0; t < tokens; ++t) {
    const float* x = in.data() + t * cols;
    kernels.quantize(x, cols, prepared.blocks.data() + t, tokens);
    kernels.to_bf16_pairs(x, cols, prepared.pairs.data() + t, tokens);
    if (kernels.to_bf16_lines != nullptr) {
      convert_token(kernels, InputForm::kBf16Lines, x, cols, t, tokens, prepared.lines.data());
    }
    for (std::int64_t c = 0; c < cols; ++c) {
      prepared.floats[static_cast<std::size_t>(c * tokens + t)] =
          round ? bf16_to_f32(f32_to_bf16(x[c])) : x[c];
    }
  }
  return prepared;
}

const void* activations(const CpuKernels& kernels, PanelFormat format, const Prepared& prepared) {
  if (format == PanelFormat::kF32) return prepared.floats.data();
  if (format != PanelFormat::kBF16) return prepared.blocks.data();
  switch (input_form(kernels, format)) {
    case InputForm::kBf16Pairs: return prepared.pairs.data();
    case InputForm::kBf16Lines: return prepared.lines.data();
    default: return prepared.floats.data();
  }
}

// The sum of |terms| a kernel adds for one element: products of weights and inputs, or of scales
// with dot products and mins with sums of activations.
double term_sum(const WeightView& view, std::int64_t row, PanelFormat format, const float* in) {
  double sum = 0.0;
  const PanelTraits traits = panel_traits(format);
  if (traits.group == 0) {
    std::vector<float> weights(static_cast<std::size_t>(view.cols));
    dequantize_row(view, row, weights.data());
    for (std::int64_t c = 0; c < view.cols; ++c) {
      sum += std::fabs(static_cast<double>(weights[static_cast<std::size_t>(c)]) *
                       static_cast<double>(in[c]));
    }
    return sum;
  }
  const std::byte* bytes = view.data.data() + row * view.row_bytes();
  for (std::int64_t b = 0; b < view.cols / kBlockColumns; ++b) {
    UnpackedBlock block{};
    unpack_block(view.format, bytes, b, view.tensor_scale, &block);
    const float* x = in + b * kBlockColumns;
    double largest = 0.0;
    for (int i = 0; i < kBlockColumns; ++i) {
      const double size = std::fabs(static_cast<double>(x[i]));
      if (size > largest) largest = size;
    }
    for (int i = 0; i < kBlockColumns; ++i) {
      const Affine map = affine(block, traits, i / traits.group);
      const double weight = std::fabs(static_cast<double>(map.scale) * block.codes[i]) +
                            std::fabs(static_cast<double>(map.min));
      // An activation's code is off by half a step of max|x| / 127 at most.
      sum += weight * (std::fabs(static_cast<double>(x[i])) + largest / 253.0);
    }
  }
  return sum;
}

struct Case {
  WeightFormat format;
  std::int64_t cols;
};

constexpr Case kCases[] = {
    {WeightFormat::kF32, 1},     {WeightFormat::kF32, 37},     {WeightFormat::kBF16, 1},
    {WeightFormat::kBF16, 37},   {WeightFormat::kBF16, 128},   {WeightFormat::kQ8_0, 32},
    {WeightFormat::kQ8_0, 576},  {WeightFormat::kQ4_0, 32},    {WeightFormat::kQ4_0, 576},
    {WeightFormat::kQ4_1, 96},   {WeightFormat::kQ5_1, 96},    {WeightFormat::kQ2_K, 512},
    {WeightFormat::kQ3_K, 512},  {WeightFormat::kQ4_K, 512},   {WeightFormat::kQ5_K, 512},
    {WeightFormat::kQ6_K, 512},  {WeightFormat::kIQ4_XS, 512}, {WeightFormat::kMXFP4, 96},
    {WeightFormat::kNVFP4, 128},
};

struct Packing {
  ThreadPool pool{1};
  Slabs slabs;
};

void check_case(const CpuKernels& kernels, Packing& packing, Case c, Values kind, int tokens,
                std::int64_t rows) {
  const RandomWeights weights(c.format, rows, c.cols, 11);
  auto packed =
      pack_matrix({&weights.view, 1}, ComputeType::kBFloat16, packing.pool, packing.slabs);
  ASSERT_TRUE(packed.has_value());
  const auto& matrix = static_cast<const CpuPackedMatrix&>(**packed);
  const PanelFormat format = matrix.segments[0].format;
  const auto in = make_values(kind, tokens * c.cols, 12);
  const bool round = format == PanelFormat::kBF16 && kernels.rounds_to_bf16;
  const Prepared prepared = prepare(kernels, in, c.cols, tokens, round);
  const auto bias = random_floats(kPanelRows, 13);
  const auto before = random_floats(tokens * kPanelRows, 14);
  for (const bool extras : {false, true}) {
    auto actual = before;
    auto expected = before;
    LinearTile tile{};
    tile.panel = matrix.panel(matrix.segments[0], 0);
    tile.cols = c.cols;
    tile.tokens = tokens;
    tile.rows = static_cast<int>(rows);
    tile.out_stride = kPanelRows;
    tile.bias = extras ? bias.data() : nullptr;
    tile.accumulate = extras;
    tile.activations = activations(kernels, format, prepared);
    tile.out = actual.data();
    kernels.linear[static_cast<std::size_t>(format)](tile);
    tile.activations = activations(reference_kernels(), format, prepared);
    tile.out = expected.data();
    reference_kernels().linear[static_cast<std::size_t>(format)](tile);
    for (std::int64_t r = 0; r < kPanelRows; ++r) {
      for (int t = 0; t < tokens; ++t) {
        const auto at = static_cast<std::size_t>(t * kPanelRows + r);
        if (r >= rows) {
          ASSERT_EQ(actual[at], before[at]) << "wrote past the last row";
          continue;
        }
        const float* x = in.data() + t * c.cols;
        const bool grouped = panel_traits(format).group != 0;
        const double terms = term_sum(weights.view, r, format, x);
        const double steps = grouped
                                 ? 4.0 * static_cast<double>(c.cols) / panel_traits(format).group
                                 : static_cast<double>(c.cols);
        // Every add rounds a partial sum no larger than `terms`; bias and old value add two more.
        const double bound =
            (steps + 4) * kUnit * terms + 8 * kUnit * 5 + static_cast<double>(c.cols) * 0x1p-126;
        ASSERT_NEAR(actual[at], expected[at], bound)
            << name(c.format) << " cols " << c.cols << " row " << r << " token " << t;
      }
    }
  }
}

TEST_P(EveryKernelTable, MultipliesAsTheReferenceDoes) {
  Packing packing;
  for (const Case& c : kCases) {
    for (const Values kind : kAllValues) {
      if (kind == Values::kHuge && c.format == WeightFormat::kBF16) continue;
      check_case(kernels(), packing, c, kind, 1, 32);
      check_case(kernels(), packing, c, kind, 5, 19);
      check_case(kernels(), packing, c, kind, kTileTokens, 3);
    }
    const bool lines = c.format == WeightFormat::kBF16 && kernels().to_bf16_lines != nullptr;
    for (int tokens = 2; tokens <= (lines ? kLineTileTokens : kTileTokens); ++tokens) {
      check_case(kernels(), packing, c, Values::kNormal, tokens, 31);
    }
  }
}

// A panel of 8-bit codes that means, to the bit, what a Q5_K or Q6_K matrix of up to 32 rows does.
// Its mins and the scales beside them are F16, which Q5_K's products must fit.
std::vector<std::byte> eight_bit_panel(const WeightView& view, PanelFormat narrow,
                                       PanelFormat wide) {
  const PanelTraits traits = panel_traits(wide);
  std::vector<std::byte> panel(static_cast<std::size_t>(panel_bytes(wide, view.cols)));
  std::byte* at = panel.data();
  for (std::int64_t b = 0; b < view.cols / kBlockColumns; ++b, at += block_bytes(traits)) {
    for (int row = 0; row < view.rows; ++row) {
      UnpackedBlock block{};
      unpack_block(view.format, view.data.data() + row * view.row_bytes(), b, 1.0F, &block);
      for (int c = 0; c < kBlockColumns; ++c) {
        std::memcpy(at + (c / 4 * kPanelRows + row) * 4 + c % 4, &block.codes[c], 1);
      }
      std::byte* scales = at + code_bytes(traits);
      for (int g = 0; g < kBlockColumns / traits.group; ++g) {
        const Affine line = affine(block, panel_traits(narrow), g);
        if (traits.scale == ScaleKind::kF32) {
          std::memcpy(scales + (g * kPanelRows + row) * 4, &line.scale, 4);
          continue;
        }
        const std::uint16_t halves[2] = {f32_to_f16(line.scale), f32_to_f16(line.min)};
        EXPECT_EQ(f16_to_f32(halves[0]), line.scale);
        EXPECT_EQ(f16_to_f32(halves[1]), line.min);
        std::memcpy(scales + row * 2, &halves[0], 2);
        std::memcpy(scales + scale_plane_bytes(traits) + row * 2, &halves[1], 2);
      }
    }
  }
  return panel;
}

// Random blocks; every third row has the largest codes, and the row after it the smallest.
RandomWeights extreme_weights(WeightFormat format, std::int64_t rows, std::int64_t cols) {
  RandomWeights weights(format, rows, cols, 21);
  const bool five = format == WeightFormat::kQ5_K;
  const std::size_t first = five ? 16 : 0;
  const std::size_t last = five ? 176 : 192;
  const auto step = static_cast<std::size_t>(block_shape(format).bytes);
  for (std::size_t at = 0; at < weights.bytes.size(); at += step) {
    const auto row = static_cast<std::int64_t>(at) / weights.view.row_bytes();
    if (row % 3 < 2) {
      std::memset(&weights.bytes[at + first], row % 3 == 0 ? 0xFF : 0, last - first);
    }
    // Five significant bits, so that their products with six fit an F16.
    if (five) weights.bytes[at] &= std::byte{0xC0};
    if (five) weights.bytes[at + 2] &= std::byte{0xC0};
  }
  weights.view.data = weights.bytes;
  return weights;
}

// Codes of 5 and 6 bits save memory, not precision: dot products of integers are exact.
TEST_P(EveryKernelTable, GetsFromNarrowCodesTheBitsOfBytes) {
  struct Narrow {
    WeightFormat format;
    PanelFormat panel;
    PanelFormat bytes;
  };
  constexpr std::int64_t kCols = 512;
  constexpr int kRows = 31;
  Packing packing;
  for (const Narrow c :
       {Narrow{WeightFormat::kQ5_K, PanelFormat::k6SuperMin, PanelFormat::k8F16Min},
        Narrow{WeightFormat::kQ6_K, PanelFormat::k6Super16, PanelFormat::k8F32Group16}}) {
    const RandomWeights weights = extreme_weights(c.format, kRows, kCols);
    const auto packed =
        pack_matrix({&weights.view, 1}, ComputeType::kBFloat16, packing.pool, packing.slabs);
    ASSERT_TRUE(packed.has_value());
    const auto& matrix = static_cast<const CpuPackedMatrix&>(**packed);
    ASSERT_EQ(matrix.segments[0].format, c.panel);
    const std::vector<std::byte> bytes = eight_bit_panel(weights.view, c.panel, c.bytes);
    for (int tokens = 1; tokens <= kTileTokens; ++tokens) {
      auto in = make_values(Values::kNormal, tokens * kCols, 22);
      std::fill_n(in.begin(), kCols, tokens % 2 == 0 ? 1.0F : -1.0F);  // codes of 127, or -127
      const Prepared prepared = prepare(kernels(), in, kCols, tokens, false);
      std::vector<float> out[2];
      for (const bool wide : {false, true}) {
        out[wide ? 1 : 0].assign(static_cast<std::size_t>(tokens * kPanelRows), 0.0F);
        LinearTile tile{};
        tile.panel = wide ? bytes.data() : matrix.panel(matrix.segments[0], 0);
        tile.cols = kCols;
        tile.activations = prepared.blocks.data();
        tile.tokens = tokens;
        tile.rows = kRows;
        tile.out = out[wide ? 1 : 0].data();
        tile.out_stride = kPanelRows;
        kernels().linear[static_cast<std::size_t>(wide ? c.bytes : c.panel)](tile);
      }
      ASSERT_NE(out[0], std::vector<float>(out[0].size(), 0.0F));
      ASSERT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)), 0)
          << name(c.format) << ", " << tokens << " tokens";
    }
  }
}

// Codes, scales and sums are the same bits in every table: all differences come later.
TEST_P(EveryKernelTable, QuantizesAsTheReferenceDoes) {
  for (const Values kind : kAllValues) {
    auto in = make_values(kind, 640, 5);
    in[70] = NAN;
    in[100] = INFINITY;
    in[130] = -INFINITY;
    std::vector<ActivationBlock> actual(40);
    std::vector<ActivationBlock> expected(40);
    kernels().quantize(in.data(), 640, actual.data(), 2);
    reference().quantize(in.data(), 640, expected.data(), 2);
    for (std::size_t b = 0; b < 40; b += 2) {
      ASSERT_EQ(std::memcmp(actual[b].codes, expected[b].codes, kBlockColumns), 0);
      ASSERT_EQ(actual[b].negated_sum, expected[b].negated_sum);
      ASSERT_EQ(actual[b].negated_half_sum[0], expected[b].negated_half_sum[0]);
      ASSERT_EQ(actual[b].negated_half_sum[1], expected[b].negated_half_sum[1]);
      if (b / 2 >= 2 && b / 2 <= 4) {
        ASSERT_TRUE(std::isnan(actual[b].scale) && std::isnan(actual[b].sum));
        continue;
      }
      ASSERT_EQ(actual[b].scale, expected[b].scale);
      ASSERT_EQ(actual[b].sum, expected[b].sum);
      ASSERT_EQ(actual[b].half_sum[0], expected[b].half_sum[0]);
      ASSERT_EQ(actual[b].half_sum[1], expected[b].half_sum[1]);
    }
  }
}

// Lines hold the pairs, the last of them filled up with zeros.
void expect_lines(const CpuKernels& kernels, const std::vector<float>& in,
                  const std::vector<std::uint32_t>& pairs, std::size_t stride) {
  constexpr std::size_t kPairs = kLineBytes / 4;
  const std::size_t lines = (pairs.size() + kPairs - 1) / kPairs;
  std::vector<std::uint32_t> actual(lines * kPairs * stride, 7);
  kernels.to_bf16_lines(in.data(), std::ssize(in), reinterpret_cast<std::byte*>(actual.data()),
                        static_cast<std::int64_t>(stride * kLineBytes));
  for (std::size_t i = 0; i < lines * kPairs; ++i) {
    const std::uint32_t expected = i < pairs.size() ? pairs[i] : 0;
    ASSERT_EQ(actual[i / kPairs * stride * kPairs + i % kPairs], expected);
  }
}

TEST_P(EveryKernelTable, RoundsToBf16AsTheReferenceDoes) {
  for (const std::int64_t cols : {1, 2, 31, 32, 33, 64, 77}) {
    auto in = random_floats(cols, 5);
    if (cols > 40) in[40] = NAN;
    const auto pairs = static_cast<std::size_t>((cols + 1) / 2);
    for (const auto stride : {std::size_t{1}, std::size_t{3}}) {
      std::vector<std::uint32_t> actual(pairs * stride, 7);
      auto expected = actual;
      kernels().to_bf16_pairs(in.data(), cols, actual.data(), static_cast<std::int64_t>(stride));
      reference().to_bf16_pairs(in.data(), cols, expected.data(),
                                static_cast<std::int64_t>(stride));
      ASSERT_EQ(actual, expected);
      if (kernels().to_bf16_lines == nullptr) continue;
      std::vector<std::uint32_t> packed(pairs);
      for (std::size_t i = 0; i < pairs; ++i) packed[i] = expected[i * stride];
      expect_lines(kernels(), in, packed, stride);
    }
  }
}

TEST_P(EveryKernelTable, FoldsSplitsAsTheReferenceDoes) {
  struct Pair {
    float first;
    float second;
  };
  for (const Pair max : {Pair{1.0F, 2.0F}, Pair{2.0F, 1.0F}, Pair{0.0F, -300.0F},
                         Pair{-INFINITY, 3.0F}, Pair{-90.0F, 0.0F}}) {
    auto out = random_floats(37, 1);
    if (max.first == -INFINITY) out.assign(37, 0.0F);
    auto expected_out = out;
    const auto split = random_floats(37, 2);
    float state[2] = {max.first, max.first == -INFINITY ? 0.0F : 3.0F};
    float expected_state[2] = {state[0], state[1]};
    kernels().attention_fold(&state[0], &state[1], out.data(), max.second, 5.0F, split.data(), 37);
    reference().attention_fold(&expected_state[0], &expected_state[1], expected_out.data(),
                               max.second, 5.0F, split.data(), 37);
    EXPECT_EQ(state[0], expected_state[0]);
    EXPECT_NEAR(state[1], expected_state[1], 8 * 8 * kUnit);
    for (std::size_t i = 0; i < 37; ++i) {
      ASSERT_NEAR(out[i], expected_out[i], 8 * kUnit * 8);
      if (max.first == -INFINITY) {
        ASSERT_EQ(out[i], split[i]);
      }
    }
  }
}

}  // namespace
}  // namespace kun
