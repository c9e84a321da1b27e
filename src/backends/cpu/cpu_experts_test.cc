// Routing and mixtures of experts on every kernel table, against plain double arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "backends/cpu/cpu_device.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

using Floats = std::vector<float>;

Floats random_floats(std::mt19937& random, std::int64_t count, float deviation = 1.0F) {
  std::normal_distribution<float> normal(0.0F, deviation);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

TensorView view(Floats& data, std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kF32, shape};
}

TensorView integer_view(std::vector<std::int32_t>& data,
                        std::initializer_list<std::int64_t> shape) {
  return {reinterpret_cast<std::byte*>(data.data()), DType::kI32, shape};
}

std::unique_ptr<Device> open(const std::string& kernels, int threads = 2) {
  auto device = open_cpu_device(
      {.thread_count = threads, .kernels = kernels, .compute = ComputeType::kFloat32});
  CHECK(device);
  return *std::move(device);
}

struct Mlp {
  Floats gate;
  Floats up;
  Floats down;
  std::unique_ptr<PackedMatrix> gate_up_packed;
  std::unique_ptr<PackedMatrix> down_packed;
};

struct Block {
  static constexpr std::int64_t kHidden = 40;
  static constexpr std::int64_t kInner = 36;  // no multiple of a panel
  static constexpr std::int64_t kSharedInner = 72;
  static constexpr int kExperts = 9;
  static constexpr int kChosen = 3;

  Block(Ops& ops, std::int64_t token_count) : tokens(token_count) {
    std::mt19937 random(4);
    for (int e = 0; e <= kExperts; ++e) add(ops, random, e == kExperts ? kSharedInner : kInner);
    in = random_floats(random, tokens * kHidden);
    start = random_floats(random, tokens * kHidden);
    weights = random_floats(random, tokens * kChosen);
    for (std::int64_t i = 0; i < tokens * kChosen; ++i) {
      // Expert 1 is popular, and nobody wants the last.
      experts.push_back(i % 2 == 0 ? 1 : static_cast<std::int32_t>(random() % (kExperts - 1)));
    }
  }

  void add(Ops& ops, std::mt19937& random, std::int64_t inner) {
    Mlp& mlp = mlps.emplace_back();
    mlp.gate = random_floats(random, inner * kHidden, 0.3F);
    mlp.up = random_floats(random, inner * kHidden, 0.3F);
    mlp.down = random_floats(random, inner * kHidden, 0.3F);
    WeightView views[2];
    views[0].rows = views[1].rows = inner;
    views[0].cols = views[1].cols = kHidden;
    views[0].data = std::as_bytes(std::span(mlp.gate));
    views[1].data = std::as_bytes(std::span(mlp.up));
    mlp.gate_up_packed = *ops.pack(views);
    views[0].rows = kHidden;
    views[0].cols = inner;
    views[0].data = std::as_bytes(std::span(mlp.down));
    mlp.down_packed = *ops.pack({views, 1});
  }

  Floats run(Ops& ops, std::int64_t first, std::int64_t count, float limit) {
    std::vector<ExpertWeights> table;
    for (const Mlp& mlp : mlps) table.push_back({mlp.gate_up_packed.get(), mlp.down_packed.get()});
    Floats out = start;
    ExpertArguments arguments;
    arguments.in = view(in, {tokens, kHidden}).slice_rows(first, count);
    arguments.experts = integer_view(experts, {tokens, kChosen}).slice_rows(first, count);
    arguments.weights = view(weights, {tokens, kChosen}).slice_rows(first, count);
    arguments.table = std::span(table).first(kExperts);
    arguments.shared = table.back();
    arguments.limit = limit;
    arguments.out = view(out, {tokens, kHidden}).slice_rows(first, count);
    ops.experts(arguments);
    return {out.begin() + first * kHidden, out.begin() + (first + count) * kHidden};
  }

  std::vector<double> apply(const Mlp& mlp, std::int64_t token, double limit) const {
    const auto x = in.begin() + token * kHidden;
    const auto inner = std::ssize(mlp.gate) / kHidden;
    std::vector<double> out(kHidden, 0.0);
    for (std::int64_t i = 0; i < inner; ++i) {
      double gate = std::inner_product(x, x + kHidden, mlp.gate.begin() + i * kHidden, 0.0);
      double up = std::inner_product(x, x + kHidden, mlp.up.begin() + i * kHidden, 0.0);
      if (limit > 0) gate = std::min(gate, limit);
      if (limit > 0) up = std::clamp(up, -limit, limit);
      const double value = gate / (1.0 + std::exp(-gate)) * up;
      for (std::int64_t o = 0; o < kHidden; ++o) {
        out[static_cast<std::size_t>(o)] +=
            value * static_cast<double>(mlp.down[static_cast<std::size_t>(o * inner + i)]);
      }
    }
    return out;
  }

  std::int64_t tokens;
  std::vector<Mlp> mlps;  // the last is the shared one
  Floats in;
  Floats start;
  Floats weights;
  std::vector<std::int32_t> experts;
};

class Experts : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kernels, Experts, testing::ValuesIn(cpu_kernel_names()));

TEST_P(Experts, MatchDoublesWithAndWithoutALimit) {
  const auto device = open(GetParam());
  for (const std::int64_t tokens : {1, 5, 150}) {
    Block block(device->ops(), tokens);
    for (const float limit : {0.0F, 0.7F}) {
      const Floats out = block.run(device->ops(), 0, tokens, limit);
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::vector<double> wanted = block.apply(block.mlps.back(), t, static_cast<double>(limit));
        for (std::int64_t j = 0; j < Block::kChosen; ++j) {
          const auto entry = static_cast<std::size_t>(t * Block::kChosen + j);
          const auto expert = static_cast<std::size_t>(block.experts[entry]);
          const auto made = block.apply(block.mlps[expert], t, static_cast<double>(limit));
          for (std::size_t i = 0; i < made.size(); ++i) {
            wanted[i] += static_cast<double>(block.weights[entry]) * made[i];
          }
        }
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          const std::size_t at = static_cast<std::size_t>(t * Block::kHidden) + i;
          ASSERT_NEAR(out[at], static_cast<double>(block.start[at]) + wanted[i], 2e-5)
              << tokens << " tokens, token " << t;
        }
      }
    }
  }
}

TEST_P(Experts, ATokenIsTheSameAloneInCompanyAndOnMoreThreads) {
  const auto two = open(GetParam(), 2);
  const auto five = open(GetParam(), 5);
  constexpr std::int64_t kTokens = 100;
  Block block(two->ops(), kTokens);
  const Floats together = block.run(two->ops(), 0, kTokens, 0.0F);
  EXPECT_EQ(together, block.run(five->ops(), 0, kTokens, 0.0F));
  for (const std::int64_t t : {std::int64_t{0}, std::int64_t{57}, kTokens - 1}) {
    const Floats alone = block.run(two->ops(), t, 1, 0.0F);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + t * Block::kHidden))
        << "token " << t;
  }
}

TEST_P(Experts, GroupsMeetMatricesOfTheirOwn) {
  const auto device = open(GetParam());
  constexpr std::int64_t kTokens = 9;
  constexpr std::int64_t kGroups = 3;
  constexpr std::int64_t kRows = 20;
  constexpr std::int64_t kCols = 24;
  std::mt19937 random(8);
  std::vector<Floats> matrices;
  std::vector<std::unique_ptr<PackedMatrix>> packed;
  std::vector<const PackedMatrix*> pointers;
  for (std::int64_t g = 0; g < kGroups; ++g) {
    matrices.push_back(random_floats(random, kRows * kCols));
    WeightView weight;
    weight.rows = kRows;
    weight.cols = kCols;
    weight.data = std::as_bytes(std::span(matrices.back()));
    packed.push_back(*device->ops().pack({&weight, 1}));
    pointers.push_back(packed.back().get());
  }
  Floats in = random_floats(random, kTokens * kGroups * kCols);
  for (const bool same_rows : {false, true}) {
    Floats out(kTokens * kGroups * kRows);
    TensorView rows = view(in, {kTokens, kGroups, kCols});
    if (same_rows) rows.stride[1] = 0;
    device->ops().linear_groups(rows, pointers, view(out, {kTokens, kGroups, kRows}));
    for (std::int64_t i = 0; i < std::ssize(out); ++i) {
      const std::int64_t t = i / (kGroups * kRows);
      const std::int64_t g = i / kRows % kGroups;
      const auto x = in.begin() + (t * kGroups + (same_rows ? 0 : g)) * kCols;
      const auto w = matrices[static_cast<std::size_t>(g)].begin() + i % kRows * kCols;
      ASSERT_NEAR(out[static_cast<std::size_t>(i)], std::inner_product(x, x + kCols, w, 0.0), 1e-4);
    }
  }
}

struct Routed {
  std::vector<std::int32_t> experts;
  Floats weights;
};

Routed route(RouteArguments arguments, Floats logits, std::int64_t chosen) {
  static const auto device = open("");
  const std::int64_t experts = std::ssize(logits);
  Routed routed{std::vector<std::int32_t>(static_cast<std::size_t>(chosen)),
                Floats(static_cast<std::size_t>(chosen))};
  arguments.logits = view(logits, {1, experts});
  arguments.experts = integer_view(routed.experts, {1, chosen});
  arguments.weights = view(routed.weights, {1, chosen});
  device->ops().route(arguments);
  return routed;
}

using Ids = std::vector<std::int32_t>;

TEST(Routing, GivesTiesToTheLowerIndex) {
  EXPECT_EQ(route({}, {1.0F, 3.0F, 3.0F, 3.0F, 1.0F}, 2).experts, (Ids{1, 2}));
  EXPECT_EQ(route({}, Floats(6, 0.0F), 3).experts, (Ids{0, 1, 2}));
}

TEST(Routing, JudgesGroupsByTheirBestOrByTheirTwoBest) {
  // Groups {0, 1}, {2, 3}, {4, 5}: the best expert is in the first, the best pair in the second.
  const Floats logits{2.0F, -4.0F, 1.5F, 1.4F, -1.0F, -1.0F};
  RouteArguments a;
  a.score = GateScore::kSigmoid;
  a.group_count = 3;
  a.group_score = GroupScore::kMax;
  EXPECT_EQ(route(a, logits, 2).experts, (Ids{0, 1}));
  a.group_score = GroupScore::kTopTwo;
  EXPECT_EQ(route(a, logits, 2).experts, (Ids{2, 3}));
}

TEST(Routing, UsesTheBiasForTheChoiceOnly) {
  Floats bias{0.0F, 0.0F, 5.0F};
  RouteArguments a;
  a.score = GateScore::kSigmoid;
  a.bias = view(bias, {3});
  a.scale = 2.0F;
  const Routed routed = route(a, {1.0F, 0.0F, -1.0F}, 1);
  EXPECT_EQ(routed.experts, (Ids{2}));
  EXPECT_NEAR(routed.weights[0], 2.0 / (1.0 + std::exp(1.0)), 1e-6);
}

TEST(Routing, ExcludesOtherGroupsEvenWhenEveryKeptChoiceIsNegative) {
  Floats bias{-9.0F, -9.0F, -20.0F, -20.0F};
  RouteArguments a;
  a.score = GateScore::kSigmoid;
  a.bias = view(bias, {4});
  a.group_count = 2;
  a.group_score = GroupScore::kTopTwo;
  EXPECT_EQ(route(a, {0.0F, 1.0F, 9.0F, 9.0F}, 2).experts, (Ids{1, 0}));
}

TEST(Routing, NormalizesAndScalesScoresOfEveryKind) {
  RouteArguments a;
  a.normalize = true;
  a.scale = 2.5F;
  for (const GateScore score :
       {GateScore::kSoftmax, GateScore::kSigmoid, GateScore::kSqrtSoftplus}) {
    a.score = score;
    const Routed routed = route(a, {0.5F, -0.5F, 30.0F, 2.0F}, 3);
    EXPECT_EQ(routed.experts, (Ids{2, 3, 0}));
    EXPECT_NEAR(std::accumulate(routed.weights.begin(), routed.weights.end(), 0.0), 2.5, 1e-5);
  }
  a.normalize = false;
  a.scale = 1.0F;
  a.score = GateScore::kSqrtSoftplus;
  EXPECT_NEAR(route(a, {0.5F, 30.0F}, 2).weights[1], std::sqrt(std::log1p(std::exp(0.5))), 1e-6);
  EXPECT_NEAR(route(a, {0.5F, 30.0F}, 2).weights[0], std::sqrt(30.0), 1e-5);
}

TEST(Routing, GivesFiniteWeightsForLogitsOfAnySize) {
  RouteArguments a;
  a.normalize = true;
  for (const GateScore score :
       {GateScore::kSoftmax, GateScore::kSigmoid, GateScore::kSqrtSoftplus}) {
    a.score = score;
    for (const Floats& logits :
         {Floats(6, 0.0F), Floats(6, -1e30F), Floats(6, 1e30F), Floats(6, 1e-41F),
          Floats{-INFINITY, 3e38F, -3e38F, 1e-45F, -INFINITY, 0.0F},
          Floats{-INFINITY, -INFINITY, -INFINITY, 0.0F, -INFINITY, -INFINITY}}) {
      const Routed routed = route(a, logits, 3);
      double sum = 0.0;
      for (const float weight : routed.weights) {
        EXPECT_TRUE(std::isfinite(weight) && weight >= 0.0F) << weight;
        sum += static_cast<double>(weight);
      }
      // Where all scores are nothing, so is their sum; it divides nothing by zero.
      EXPECT_TRUE(std::abs(sum - 1.0) < 1e-5 || sum < 1e-5) << sum;
    }
  }
}

TEST(Routing, TakesExpertsThatAreGiven) {
  std::vector<std::int32_t> given{3, 1};
  RouteArguments a;
  a.given = integer_view(given, {1, 2});
  a.normalize = true;
  const Routed routed = route(a, {9.0F, 0.0F, 8.0F, 0.0F}, 2);
  EXPECT_EQ(routed.experts, given);
  EXPECT_FLOAT_EQ(routed.weights[0], 0.5F);
  EXPECT_FLOAT_EQ(routed.weights[1], 0.5F);
}

}  // namespace
}  // namespace kun
