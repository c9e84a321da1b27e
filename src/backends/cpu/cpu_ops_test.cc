// What every table promises through Ops: the right values, and the same bits whatever the batch,
// the chunks of a prompt and the number of threads.
#include "backends/cpu/cpu_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/random_weights.h"

namespace kun {
namespace {

TensorView view2(std::vector<float>& data, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, {rows, cols}};
}
TensorView view3(std::vector<float>& data, std::int64_t a, std::int64_t b, std::int64_t c) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, {a, b, c}};
}
std::vector<float> zeros(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count));
}
bool same_bits(const float* a, const float* b, std::int64_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(float)) == 0;
}

struct Opened {
  Opened(const std::string& kernels, ComputeType compute, int threads) {
    auto opened =
        open_cpu_device({.thread_count = threads, .kernels = kernels, .compute = compute});
    CHECK(opened.has_value());
    device = *std::move(opened);
  }
  Ops& ops() const { return device->ops(); }
  std::unique_ptr<Device> device;
};

std::unique_ptr<PackedMatrix> pack(Ops& ops, std::span<const WeightView> views) {
  auto packed = ops.pack(views);
  CHECK(packed.has_value());
  return *std::move(packed);
}

// [row][col] of all views.
std::vector<float> dequantized(std::span<const WeightView> views) {
  std::vector<float> all;
  for (const WeightView& view : views) {
    for (std::int64_t r = 0; r < view.rows; ++r) {
      std::vector<float> row(static_cast<std::size_t>(view.cols));
      dequantize_row(view, r, row.data());
      all.insert(all.end(), row.begin(), row.end());
    }
  }
  return all;
}

struct Product {
  double value = 0.0;
  double magnitude = 0.0;  // sum of |terms|
};

// Row `row` times one input, the input's error included in magnitude's meaning by the caller.
Product product(const float* weights, const float* in, std::int64_t cols) {
  Product result;
  for (std::int64_t c = 0; c < cols; ++c) {
    const double term = static_cast<double>(weights[c]) * static_cast<double>(in[c]);
    result.value += term;
    result.magnitude += std::fabs(term);
  }
  return result;
}

// A bound on what rounding the activations costs: int8 blocks are off by half a step of
// max|x| / 127 in each column, BF16 ones (and F16 weights made BF16) by 2^-9 relative each.
double activation_error(WeightFormat format, const float* weights, const float* in,
                        std::int64_t cols, double magnitude) {
  if (format == WeightFormat::kF32) return 0.0;
  if (format == WeightFormat::kBF16 || format == WeightFormat::kF16) return magnitude * 0x1p-7;
  double error = 0.0;
  for (std::int64_t b = 0; b < cols; b += kBlockColumns) {
    double largest = 0.0;
    double weight_sum = 0.0;
    for (std::int64_t c = b; c < b + kBlockColumns; ++c) {
      largest = std::fmax(largest, std::fabs(static_cast<double>(in[c])));
      weight_sum += std::fabs(static_cast<double>(weights[c]));
    }
    error += weight_sum * largest / 127.0 * 0.5001;
  }
  return error;
}

class EveryTable : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cpu, EveryTable, testing::ValuesIn(cpu_kernel_names()),
                         [](const auto& table) { return table.param; });

void check_linear(const Opened& opened, WeightFormat format, ComputeType compute, std::int64_t rows,
                  std::int64_t cols, std::int64_t tokens) {
  const RandomWeights a(format, rows, cols, 1);
  const RandomWeights b(format, 5, cols, 2);
  const WeightView views[] = {a.view, b.view};
  const auto packed = pack(opened.ops(), views);
  const std::int64_t all_rows = rows + 5;
  ASSERT_EQ(packed->rows, all_rows);
  auto in = random_floats(tokens * cols, 3);
  auto bias = random_floats(all_rows, 4);
  auto out = random_floats(tokens * all_rows, 5);
  const auto before = out;
  opened.ops().linear(view2(in, tokens, cols), *packed, {}, LinearOutput::kAccumulate,
                      view2(out, tokens, all_rows));
  const TensorView bias_view(reinterpret_cast<std::byte*>(bias.data()), DType::kF32, {all_rows});
  auto biased = zeros(tokens * all_rows);
  opened.ops().linear(view2(in, tokens, cols), *packed, bias_view, LinearOutput::kStore,
                      view2(biased, tokens, all_rows));
  const auto weights = dequantized(views);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t r = 0; r < all_rows; ++r) {
      const float* w = weights.data() + r * cols;
      const float* x = in.data() + t * cols;
      const Product exact = product(w, x, cols);
      const auto at = static_cast<std::size_t>(t * all_rows + r);
      // (cols + 3) roundings of float sums, on top of the activations' own.
      double bound = static_cast<double>(cols + 3) * 0x1p-24 * (exact.magnitude * 1.02 + 10.0);
      if (compute == ComputeType::kBFloat16) {
        bound += activation_error(format, w, x, cols, exact.magnitude);
      }
      ASSERT_NEAR(out[at], exact.value + static_cast<double>(before[at]), bound)
          << name(format) << " token " << t << " row " << r;
      ASSERT_NEAR(biased[at], exact.value + static_cast<double>(bias[static_cast<std::size_t>(r)]),
                  bound);
    }
  }
}

TEST_P(EveryTable, MultipliesEveryFormatOnTheFastPath) {
  const Opened opened(GetParam(), ComputeType::kBFloat16, 2);
  for (const WeightFormat format : kAllWeightFormats) {
    check_linear(opened, format, ComputeType::kBFloat16, 75, 512, 1);
    check_linear(opened, format, ComputeType::kBFloat16, 40, 256, 11);
  }
  check_linear(opened, WeightFormat::kQ4_1, ComputeType::kBFloat16, 33, 32, 3);
  check_linear(opened, WeightFormat::kBF16, ComputeType::kBFloat16, 33, 37, 3);
  check_linear(opened, WeightFormat::kF32, ComputeType::kBFloat16, 1, 1, 9);
}

TEST_P(EveryTable, MultipliesEveryFormatOnTheExactPath) {
  const Opened opened(GetParam(), ComputeType::kFloat32, 2);
  for (const WeightFormat format : kAllWeightFormats) {
    check_linear(opened, format, ComputeType::kFloat32, 75, 512, 1);
    check_linear(opened, format, ComputeType::kFloat32, 40, 256, 11);
  }
  check_linear(opened, WeightFormat::kF32, ComputeType::kFloat32, 33, 37, 3);
}

TEST_P(EveryTable, GivesARowTheSameBitsInEveryBatchAndOnAnyThreads) {
  const std::int64_t cols = 512;
  const std::int64_t tokens_max = 33;
  const Opened one(GetParam(), ComputeType::kBFloat16, 1);
  const Opened two(GetParam(), ComputeType::kBFloat16, 2);
  const RandomWeights parts[] = {{WeightFormat::kQ4_1, 70, cols}, {WeightFormat::kQ8_0, 32, cols},
                                 {WeightFormat::kBF16, 33, cols}, {WeightFormat::kF32, 3, cols},
                                 {WeightFormat::kQ4_K, 40, cols}, {WeightFormat::kQ6_K, 31, cols}};
  std::vector<WeightView> views;
  std::int64_t rows = 0;
  for (const RandomWeights& part : parts) {
    views.push_back(part.view);
    rows += part.view.rows;
  }
  const auto packed_one = pack(one.ops(), views);
  const auto packed_two = pack(two.ops(), views);
  auto in = random_floats(tokens_max * cols, 7);
  auto expected = zeros(tokens_max * rows);
  for (std::int64_t t = 0; t < tokens_max; ++t) {
    one.ops().linear(view2(in, tokens_max, cols).slice_rows(t, 1), *packed_one, {},
                     LinearOutput::kStore, view2(expected, tokens_max, rows).slice_rows(t, 1));
  }
  for (std::int64_t tokens = 1; tokens <= tokens_max; ++tokens) {
    auto out = zeros(tokens * rows);
    two.ops().linear(view2(in, tokens_max, cols).slice_rows(0, tokens), *packed_two, {},
                     LinearOutput::kStore, view2(out, tokens, rows));
    ASSERT_TRUE(same_bits(out.data(), expected.data(), tokens * rows)) << tokens;
  }
}

// The block as its three operations one after the other.
std::vector<float> feed_forward(Ops& ops, TensorView in, const PackedMatrix& gate_up,
                                const PackedMatrix& down, ConstTensorView bias,
                                std::vector<float> out) {
  auto wide = zeros(in.rows() * gate_up.rows);
  auto gated = zeros(in.rows() * down.cols);
  const TensorView wide_view = view2(wide, in.rows(), gate_up.rows);
  const TensorView gated_view = view2(gated, in.rows(), down.cols);
  ops.linear(in, gate_up, {}, LinearOutput::kStore, wide_view);
  ops.silu_gate(wide_view, gated_view);
  ops.linear(gated_view, down, bias, LinearOutput::kAccumulate, view2(out, in.rows(), down.rows));
  return out;
}

TEST_P(EveryTable, FusesTheFeedForwardBlockWithTheSameBits) {
  constexpr std::int64_t kCols = 256;
  constexpr std::int64_t kRows = 40;  // one panel and a quarter
  struct Shape {
    std::int64_t inner;
    WeightFormat gate;
    WeightFormat up;
    WeightFormat down;
  };
  // Blocks or floats between the products; panels that are whole or not; an odd number of panels,
  // one of super blocks, and more than a pass takes.
  const Shape shapes[] = {{96, WeightFormat::kQ4_0, WeightFormat::kQ6_K, WeightFormat::kQ8_0},
                          {256, WeightFormat::kBF16, WeightFormat::kQ4_K, WeightFormat::kQ4_K},
                          {64, WeightFormat::kQ8_0, WeightFormat::kQ8_0, WeightFormat::kBF16},
                          {70, WeightFormat::kQ4_0, WeightFormat::kQ4_0, WeightFormat::kBF16}};
  for (const ComputeType compute : {ComputeType::kBFloat16, ComputeType::kFloat32}) {
    const Opened opened(GetParam(), compute, 2);
    Ops& ops = opened.ops();
    for (const Shape& shape : shapes) {
      const RandomWeights gate(shape.gate, shape.inner, kCols, 1);
      const RandomWeights up(shape.up, shape.inner, kCols, 2);
      const RandomWeights down(shape.down, kRows, shape.inner, 3);
      const WeightView views[] = {gate.view, up.view};
      const auto gate_up = pack(ops, views);
      const auto packed_down = pack(ops, {&down.view, 1});
      auto bias = random_floats(kRows, 4);
      const TensorView bias_view(reinterpret_cast<std::byte*>(bias.data()), DType::kF32, {kRows});
      // One tile of tokens, tiles of unequal size, and more tiles than stream through a panel.
      for (const std::int64_t tokens : {1, 6, 8, 20, 80}) {
        auto in = random_floats(tokens * kCols, 5);
        if (tokens > 6) in[static_cast<std::size_t>(6 * kCols)] = NAN;
        auto wide = zeros(tokens * 2 * shape.inner);
        auto gated = zeros(tokens * shape.inner);
        auto out = random_floats(tokens * kRows, 6);
        const auto expected =
            feed_forward(ops, view2(in, tokens, kCols), *gate_up, *packed_down, bias_view, out);
        ops.gated_mlp(view2(in, tokens, kCols), *gate_up, *packed_down, bias_view,
                      view2(wide, tokens, 2 * shape.inner), view2(gated, tokens, shape.inner),
                      view2(out, tokens, kRows));
        ASSERT_TRUE(same_bits(out.data(), expected.data(), tokens * kRows))
            << shape.inner << ' ' << tokens;
      }
    }
  }
}

TEST_P(EveryTable, KeepsNonFiniteInputsInTheirRow) {
  const std::int64_t cols = 256;
  const Opened opened(GetParam(), ComputeType::kBFloat16, 2);
  for (const WeightFormat format : kAllWeightFormats) {
    const RandomWeights weights(format, 40, cols);
    const auto packed = pack(opened.ops(), {&weights.view, 1});
    auto in = random_floats(10 * cols, 3);
    auto clean = zeros(10 * 40);
    opened.ops().linear(view2(in, 10, cols), *packed, {}, LinearOutput::kStore,
                        view2(clean, 10, 40));
    in[4 * cols + 17] = NAN;
    in[7 * cols + 200] = INFINITY;
    auto out = zeros(10 * 40);
    opened.ops().linear(view2(in, 10, cols), *packed, {}, LinearOutput::kStore, view2(out, 10, 40));
    for (std::int64_t t = 0; t < 10; ++t) {
      const float* row = out.data() + t * 40;
      if (t == 4) {
        for (int r = 0; r < 40; ++r) ASSERT_TRUE(std::isnan(row[r])) << name(format);
      } else if (t == 7) {
        for (int r = 0; r < 40; ++r) ASSERT_FALSE(std::isfinite(row[r])) << name(format);
      } else {
        ASSERT_TRUE(same_bits(row, clean.data() + t * 40, 40)) << name(format);
      }
    }
  }
}

TEST(CpuPack, RefusesViewsThatCannotBe) {
  const Opened opened("reference", ComputeType::kBFloat16, 1);
  const RandomWeights good(WeightFormat::kQ4_0, 4, 64);
  const auto refuse = [&](WeightView view) {
    const WeightView views[] = {good.view, view};
    return !opened.ops().pack(views).has_value();
  };
  EXPECT_TRUE(opened.ops().pack({&good.view, 1}).has_value());
  EXPECT_FALSE(opened.ops().pack({}).has_value());
  WeightView view = good.view;
  view.cols = 32;
  EXPECT_TRUE(refuse(view));
  view = good.view;
  view.data = view.data.first(view.data.size() - 1);
  EXPECT_TRUE(refuse(view));
  view = good.view;
  view.rows = -1;
  EXPECT_TRUE(refuse(view));
  view = good.view;
  view.format = WeightFormat::kQ4_K;  // 64 columns are no multiple of 256
  EXPECT_TRUE(refuse(view));
  view = good.view;
  view.tensor_scale = 2.0F;
  EXPECT_TRUE(refuse(view));
}

TEST_P(EveryTable, EmbedsRowsAsTheDequantizerDoes) {
  const Opened opened(GetParam(), ComputeType::kBFloat16, 2);
  const RandomWeights table(WeightFormat::kQ6_K, 50, 512);
  std::vector<Token> ids;
  for (int i = 0; i < 80; ++i) ids.push_back(i * 7 % 50);
  auto out = zeros(80 * 512);
  opened.ops().embed(ids, table.view, view2(out, 80, 512));
  std::vector<float> row(512);
  for (int i = 0; i < 80; ++i) {
    dequantize_row(table.view, ids[static_cast<std::size_t>(i)], row.data());
    ASSERT_TRUE(same_bits(out.data() + i * 512, row.data(), 512));
  }
}

TEST_P(EveryTable, NormalizesRowsAndHeads) {
  const Opened opened(GetParam(), ComputeType::kBFloat16, 2);
  for (const std::int64_t size : {1, 7, 16, 33, 64, 576, 1537}) {
    auto in = random_floats(3 * 2 * size, 1);
    auto weight = random_floats(size, 2);
    auto out = zeros(3 * 2 * size);
    const TensorView weights(reinterpret_cast<std::byte*>(weight.data()), DType::kF32, {size});
    opened.ops().rms_norm(view3(in, 3, 2, size), weights, 1e-6F, view3(out, 3, 2, size));
    for (std::int64_t row = 0; row < 6; ++row) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < size; ++i) {
        squares += std::pow(static_cast<double>(in[static_cast<std::size_t>(row * size + i)]), 2);
      }
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(size) + 1e-6);
      for (std::int64_t i = 0; i < size; ++i) {
        const auto at = static_cast<std::size_t>(row * size + i);
        const double expected = static_cast<double>(in[at]) * scale *
                                static_cast<double>(weight[static_cast<std::size_t>(i)]);
        // The sum of squares is off by (size / 16 + 5) roundings at most, halved by the root; then
        // root, division and two products.
        const double bound = (static_cast<double>(size) / 16 + 10) * 0x1p-24;
        ASSERT_NEAR(out[at], expected, std::fabs(expected) * bound);
      }
    }
    auto in_place = in;
    opened.ops().rms_norm(view3(in_place, 3, 2, size), weights, 1e-6F, view3(in_place, 3, 2, size));
    ASSERT_TRUE(same_bits(in_place.data(), out.data(), 6 * size));
  }
}

TEST_P(EveryTable, RotatesPairsInBothLayouts) {
  const Opened opened(GetParam(), ComputeType::kBFloat16, 2);
  for (const std::int64_t dim : {2, 6, 8, 16, 24, 64, 128}) {
    const std::int64_t half = dim / 2;
    for (const RopeLayout layout : {RopeLayout::kHalf, RopeLayout::kInterleaved}) {
      auto heads = random_floats(4 * 3 * dim, 1);
      const auto before = heads;
      std::vector<float> table;
      for (std::int64_t i = 0; i < 4 * half; ++i) {
        table.push_back(std::cos(0.3F * static_cast<float>(i)));
        table.push_back(std::sin(0.3F * static_cast<float>(i)));
      }
      opened.ops().rope(view3(heads, 4, 3, dim), view3(table, 4, half, 2), layout);
      for (std::int64_t row = 0; row < 12; ++row) {
        for (std::int64_t i = 0; i < half; ++i) {
          const bool halves = layout == RopeLayout::kHalf;
          const auto first = static_cast<std::size_t>(row * dim + (halves ? i : 2 * i));
          const auto second = first + static_cast<std::size_t>(halves ? half : 1);
          const double cos =
              static_cast<double>(table[static_cast<std::size_t>((row / 3 * half + i) * 2)]);
          const double sin =
              static_cast<double>(table[static_cast<std::size_t>((row / 3 * half + i) * 2 + 1)]);
          const double a = static_cast<double>(before[first]);
          const double b = static_cast<double>(before[second]);
          const double bound = 3 * 0x1p-24 * (std::fabs(a) + std::fabs(b));
          ASSERT_NEAR(heads[first], a * cos - b * sin, bound);
          ASSERT_NEAR(heads[second], b * cos + a * sin, bound);
        }
      }
    }
  }
}

TEST_P(EveryTable, GatesWithSilu) {
  const Opened opened(GetParam(), ComputeType::kBFloat16, 1);
  std::vector<float> gate{0.0F,  -0.0F,  1e-40F, -1e-40F, 1e-3F,  -1.0F, 1.0F,
                          20.0F, -20.0F, 87.0F,  -87.0F,  -88.5F, 89.0F, -104.0F,
                          1e30F, -1e30F, 5.5F,   -5.5F,   -30.0F, 30.0F, 0.5F};
  const auto extra = random_floats(64, 1);
  gate.insert(gate.end(), extra.begin(), extra.end());
  const auto size = static_cast<std::int64_t>(gate.size());
  auto gate_up = gate;
  gate_up.resize(gate.size() * 2, 1.5F);
  auto out = zeros(size);
  opened.ops().silu_gate(view2(gate_up, 1, 2 * size), view2(out, 1, size));
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double x = static_cast<double>(gate[i]);
    const double expected = 1.5 * x / (1.0 + std::exp(-x));
    // exp within 2 units, then a sum, a quotient and a product; results below the normal range may
    // be flushed.
    ASSERT_NEAR(out[i], expected, std::fabs(expected) * 6 * 0x1p-23 + 2e-37) << gate[i];
  }
  std::vector<float> bad{NAN, 1.0F, INFINITY, 1.0F, -INFINITY, 1.0F, 1.0F, 1.0F};
  auto bad_out = zeros(4);
  opened.ops().silu_gate(view2(bad, 1, 8), view2(bad_out, 1, 4));
  EXPECT_TRUE(std::isnan(bad_out[0]));
  EXPECT_FALSE(std::isnan(bad_out[1]));
}

}  // namespace
}  // namespace kun
