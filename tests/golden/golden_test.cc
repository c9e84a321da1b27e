// Tiny checkpoints against stored logits. The expected values come from a float64 program that was
// written from the models' formulas and agrees with llama.cpp to 1e-5.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "executor/worker.h"
#include "models/registry.h"

namespace kun {
namespace {

struct Expected {
  std::vector<Token> tokens;
  std::vector<std::vector<double>> logits;  // [position][vocabulary]
};

Expected read_expected(const std::filesystem::path& path) {
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load(path.string());
  Expected expected;
  for (const std::int64_t token : root["tokens"].get_array()) {
    expected.tokens.push_back(static_cast<Token>(token));
  }
  for (const simdjson::dom::element row : root["logits"].get_array()) {
    std::vector<double>& values = expected.logits.emplace_back();
    for (const double value : row.get_array()) values.push_back(value);
  }
  return expected;
}

struct Case {
  std::string model;
  std::string file;     // "model.gguf", or empty for the folder itself
  std::string kernels;  // empty: the best of this machine
  ComputeType compute = ComputeType::kFloat32;
  bool by_shape = false;  // --latent-form
};

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + (info.param.file.empty() ? "_safetensors_" : "_gguf_") +
                     (info.param.kernels.empty() ? "best" : info.param.kernels) +
                     (info.param.by_shape ? "_by_shape" : "");
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}

class Golden : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kBlockCount = 16;
  static constexpr int kBlocksPerText = 5;

  void SetUp() override { load(kBlockCount); }

  void load(int block_count) {
    const std::filesystem::path folder =
        std::filesystem::path(KUN_TEST_DATA) / "tiny-models" / GetParam().model;
    expected_ = read_expected(folder / "expected.json");
    DeviceOptions options;
    options.thread_count = 2;
    options.kernels = GetParam().kernels;
    options.compute = GetParam().compute;
    auto device = open_cpu_device(options);
    ASSERT_TRUE(device) << device.error().message();
    device_ = *std::move(device);
    auto checkpoint = open_checkpoint(folder / GetParam().file);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    checkpoint_ = *std::move(checkpoint);
    auto model =
        load_model(*checkpoint_, device_->ops(),
                   {.cache_dtype = device_->cache_dtype(), .latent_by_shape = GetParam().by_shape});
    ASSERT_TRUE(model) << model.error().message();
    const auto groups = (*model)->kv_layout().groups.size();
    auto worker =
        Worker::create(*std::move(model), device_->ops(),
                       {.block_counts = std::vector<int>(groups, block_count),
                        .vocabulary_limit = static_cast<int>(expected_.logits.front().size())});
    ASSERT_TRUE(worker) << worker.error().message();
    worker_ = *std::move(worker);
  }

  void expect_row(std::int32_t position, std::span<const float> logits) const {
    const auto& wanted = expected_.logits[static_cast<std::size_t>(position)];
    ASSERT_EQ(logits.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(logits[i], wanted[i], 1e-4) << "position " << position << ", token " << i;
    }
  }

  void expect_text_in_chunks_of(int chunk) {
    std::size_t row_count = 0;
    const Status status = worker_->evaluate_text(
        expected_.tokens, chunk,
        [&](std::size_t, std::int32_t position, std::span<const float> logits) {
          expect_row(position, logits);
          ++row_count;
        });
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(row_count, expected_.tokens.size());
  }

  const std::vector<KvGroup>& groups() const { return worker_->model().kv_layout().groups; }

  // A slice of the expected text that keeps its cache in the kBlocksPerText blocks from `block` on.
  PlanSlice slice(SequenceId id, BlockId block, int first, int count) const {
    PlanSlice made;
    made.sequence = id;
    made.first_position = first;
    made.tokens.assign(expected_.tokens.begin() + first, expected_.tokens.begin() + first + count);
    for (const KvGroup& group : groups()) {
      std::vector<BlockId>& blocks = made.blocks.emplace_back();
      for (int b = 0; b * group.tokens_per_block < first + count; ++b) blocks.push_back(block + b);
      CHECK(std::ssize(blocks) <= kBlocksPerText);
    }
    for (int i = 0; i < count; ++i) made.wanted.push_back(i);
    return made;
  }

  Expected expected_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Worker> worker_;
};

// The head is linear: what it makes of a sum of hidden states is the sum of the logits.
TEST_P(Golden, PoolsTheHiddenStatesThatTheHeadReads) {
  const int count = static_cast<int>(expected_.tokens.size());
  BatchPlan plan;
  plan.slices.push_back(slice(1, 0, 0, count));
  plan.slices.back().pooling = Pooling::kMean;
  plan.slices.push_back(slice(2, kBlocksPerText, 0, count));
  plan.slices.back().wanted.clear();
  plan.slices.push_back(slice(3, 2 * kBlocksPerText, 0, count));
  plan.slices.back().pooling = Pooling::kLast;
  plan.slices.back().wanted = {count - 1};
  ASSERT_TRUE(worker_->forward(plan).ok());
  const StepResult result = worker_->sample(plan, {});
  ASSERT_TRUE(result.status.ok()) << result.status.message();
  std::vector<float> hidden;
  for (const std::size_t s : {0U, 2U}) {
    ASSERT_EQ(std::ssize(result.slices[s].pooled), worker_->model().hidden_size());
    const double scale = s == 0 ? 1.0 / count : 1.0;
    for (const double value : result.slices[s].pooled) {
      hidden.push_back(static_cast<float>(value * scale));
    }
  }
  const auto vocabulary = static_cast<std::int64_t>(expected_.logits.front().size());
  std::vector<float> logits(2 * expected_.logits.front().size());
  const ConstTensorView in(reinterpret_cast<const std::byte*>(hidden.data()), DType::kF32,
                           {2, worker_->model().hidden_size()});
  const TensorView out(reinterpret_cast<std::byte*>(logits.data()), DType::kF32, {2, vocabulary});
  ASSERT_TRUE(worker_->model().logits(in, out).ok());
  for (std::int64_t i = 0; i < vocabulary; ++i) {
    double mean = 0.0;
    for (const std::vector<double>& row : expected_.logits) {
      mean += row[static_cast<std::size_t>(i)] / count;
    }
    ASSERT_NEAR(out.row<float>(0)[i], mean, 1e-4) << "token " << i;
    ASSERT_NEAR(out.row<float>(1)[i], expected_.logits.back()[static_cast<std::size_t>(i)], 1e-4);
  }
}

TEST_P(Golden, MatchesWhole) {
  expect_text_in_chunks_of(1 << 20);
}

TEST_P(Golden, MatchesTokenByToken) {
  expect_text_in_chunks_of(1);
}

TEST_P(Golden, MatchesInChunksOfSeven) {
  expect_text_in_chunks_of(7);
}

TEST_P(Golden, MatchesInCompany) {
  // Three copies of the text advance at different speeds through the same steps.
  const auto length = static_cast<int>(expected_.tokens.size());
  const std::vector<int> paces{1, 3, 5};
  std::vector<int> done(paces.size(), 0);
  for (std::uint64_t step = 0; done.front() < length; ++step) {
    BatchPlan plan;
    plan.step = step;
    for (std::size_t i = 0; i < paces.size(); ++i) {
      const int count = std::min(paces[i], length - done[i]);
      if (count == 0) continue;
      plan.slices.push_back(slice(i, static_cast<BlockId>(kBlocksPerText * i), done[i], count));
      done[i] += count;
    }
    const Status status = worker_->evaluate(
        plan, [&](std::size_t which, std::int32_t offset, std::span<const float> logits) {
          expect_row(plan.slices[which].first_position + offset, logits);
        });
    ASSERT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(Golden, MatchesAfterAFork) {
  // A second sequence goes on from a copy of the first one's last block, as choices of one request
  // do, while the first goes on, too: nothing of theirs may be shared any more.
  const auto length = static_cast<int>(expected_.tokens.size());
  const int shared = length / 2 + 1;
  const auto ignore = [](std::size_t, std::int32_t, std::span<const float>) {};
  BatchPlan plan;
  plan.slices.push_back(slice(0, 0, 0, shared));
  ASSERT_TRUE(worker_->evaluate(plan, ignore).ok());
  plan.slices = {slice(1, 0, shared, 1), slice(0, 0, shared, length - shared)};
  for (std::size_t g = 0; g < groups().size(); ++g) {
    // The other sequence must not find what it reads overwritten by wrong tokens.
    const int last = shared / groups()[g].tokens_per_block;
    plan.block_copies.push_back({static_cast<int>(g), last, kBlocksPerText + last});
    plan.slices[0].blocks[g].back() = kBlocksPerText + last;
  }
  plan.slices[0].tokens = {0};  // another token than the text's
  plan.slices[0].wanted.clear();
  const Status status =
      worker_->evaluate(plan, [&](std::size_t, std::int32_t offset, std::span<const float> logits) {
        expect_row(shared + offset, logits);
      });
  ASSERT_TRUE(status.ok()) << status.message();
}

// For texts longer than a block.
class GoldenLong : public Golden {};

TEST_P(GoldenLong, MatchesAfterAPrefixOfWholeBlocks) {
  // What a prefix hit does: the blocks of a computed text are another's beginning.
  const auto length = static_cast<int>(expected_.tokens.size());
  int unit = 1;
  for (const KvGroup& group : groups()) unit = std::lcm(unit, group.tokens_per_block);
  const int shared = length / unit * unit;
  ASSERT_GT(shared, 0);
  ASSERT_LT(shared, length);
  const auto ignore = [](std::size_t, std::int32_t, std::span<const float>) {};
  BatchPlan plan;
  plan.slices.push_back(slice(0, 0, 0, length));
  ASSERT_TRUE(worker_->evaluate(plan, ignore).ok());
  plan.slices = {slice(1, 0, shared, length - shared)};
  for (std::size_t g = 0; g < groups().size(); ++g) {
    for (std::size_t b = 0; b < plan.slices[0].blocks[g].size(); ++b) {
      const bool own = static_cast<int>(b) * groups()[g].tokens_per_block >= shared;
      if (own) plan.slices[0].blocks[g][b] += kBlocksPerText;
    }
  }
  const Status status =
      worker_->evaluate(plan, [&](std::size_t, std::int32_t offset, std::span<const float> logits) {
        expect_row(shared + offset, logits);
      });
  ASSERT_TRUE(status.ok()) << status.message();
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model : {"llama-mha", "llama-gqa-linear", "llama-gqa-llama3", "qwen2-bias-tied",
                            "qwen3-yarn", "deepseek-moe", "deepseek-v2-lite", "deepseek-v2-group",
                            "deepseek-v3", "deepseek-v32", "deepseek-v4"}) {
    for (const char* file : {"", "model.gguf"}) {
      for (const std::string& kernels : cpu_kernel_names()) cases.push_back({model, file, kernels});
    }
  }
  for (const char* model : {"deepseek-v2-lite", "deepseek-v3", "deepseek-v32"}) {
    cases.push_back({.model = model, .file = "", .kernels = "", .by_shape = true});
  }
  for (const char* model :
       {"llama-gptq-int4", "llama-gptq-int4-descact", "llama-gptq_v2-int8", "llama-awq-gemm",
        "llama-ct-pack-int4-sym", "llama-ct-pack-int4-asym", "llama-ct-int8", "llama-ct-fp8",
        "deepseek-v3-fp8", "deepseek-v4-fp8fp4"}) {
    for (const std::string& kernels : cpu_kernel_names()) cases.push_back({model, "", kernels});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(TinyModels, Golden, testing::ValuesIn(all_cases()), case_name);

std::vector<Case> long_cases() {
  std::vector<Case> cases;
  for (const std::string& kernels : cpu_kernel_names()) {
    cases.push_back({"deepseek-v4", "", kernels});
    cases.push_back({"deepseek-v4", "model.gguf", kernels});
    cases.push_back({"deepseek-v4-fp8fp4", "", kernels});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(TinyModels, GoldenLong, testing::ValuesIn(long_cases()), case_name);

// The fast path rounds to BF16 (relative error below 2^-9) in about ten places a layer: weights,
// activations before each product, cache, queries, attention's weights. Independent errors of three
// or four layers add up to sqrt(40) 2^-9 = 1.2 % of the logits' size. Twice that is the bound, for
// the median of the positions: where a gate's choice is so near that a rounding turns it, a tiny
// model's logits are others.
class GoldenFast : public Golden {};

TEST_P(GoldenFast, StaysWithinTheRoundingOfBfloat16) {
  std::vector<double> errors;
  const Status status = worker_->evaluate_text(
      expected_.tokens, 7, [&](std::size_t, std::int32_t position, std::span<const float> logits) {
        const auto& wanted = expected_.logits[static_cast<std::size_t>(position)];
        double error = 0.0;
        double size = 0.0;
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          error += std::pow(static_cast<double>(logits[i]) - wanted[i], 2.0);
          size += std::pow(wanted[i], 2.0);
        }
        errors.push_back(std::sqrt(error / size));
      });
  ASSERT_TRUE(status.ok()) << status.message();
  std::nth_element(errors.begin(), errors.begin() + std::ssize(errors) / 2, errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.024);
}

std::vector<Case> fast_cases() {
  std::vector<Case> cases;
  for (const char* model : {"llama-gqa-llama3", "qwen3-yarn", "deepseek-moe", "deepseek-v2-lite",
                            "deepseek-v2-group", "deepseek-v3", "deepseek-v32", "deepseek-v4"}) {
    for (const std::string& kernels : cpu_kernel_names()) {
      cases.push_back({model, "", kernels, ComputeType::kBFloat16});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(TinyModels, GoldenFast, testing::ValuesIn(fast_cases()), case_name);

// A token's logits depend on the tokens before it alone, to the last bit: not on how they were cut
// into steps, on wrong drafts behind them, or on company. So also not on preemption, which computes
// prompt and outputs again in other pieces, nor on a prefix hit, which computes the rest in others.
class SameBits : public Golden {
 protected:
  static constexpr int kLength = 300;     // beyond the first split of the context
  static constexpr int kTextBlocks = 10;  // of 32 positions or more

  struct Piece {
    int count;
    int drafts = 0;  // wrong ones, computed behind the piece
  };

  void SetUp() override {
    load(3 * kTextBlocks);
    std::mt19937 random(1);
    for (int i = 0; i < kLength; ++i) text_.push_back(static_cast<Token>(random() % 48));
  }

  PlanSlice piece_of(SequenceId id, int first, int count, int drafts) const {
    PlanSlice made;
    made.sequence = id;
    made.first_position = first;
    made.tokens.assign(text_.begin() + first, text_.begin() + first + count);
    for (int i = 0; i < drafts; ++i) {
      const Token right = text_[static_cast<std::size_t>((first + count + i) % kLength)];
      made.tokens.push_back((right + 1 + i) % 48);
    }
    const int end = first + count + drafts;
    for (const KvGroup& group : groups()) {
      std::vector<BlockId>& blocks = made.blocks.emplace_back();
      for (int b = 0; b * group.tokens_per_block < end; ++b) {
        blocks.push_back(kTextBlocks * static_cast<BlockId>(id) + b);
      }
      CHECK(std::ssize(blocks) <= kTextBlocks);
    }
    for (int i = 0; i < count; ++i) made.wanted.push_back(i);
    return made;
  }

  // Two others beside the text, one of which reads, while the other's prompt comes in pieces.
  void add_company(BatchPlan& plan, int step) const {
    const PlanSlice reader = step == 0 ? piece_of(1, 0, 30, 0) : piece_of(1, 29 + step, 1, 0);
    plan.slices.insert(plan.slices.begin(), reader);
    plan.slices.push_back(piece_of(2, step % 17 * 17, 17, 0));
  }

  // Of every position. The last piece is repeated until the text ends.
  std::vector<float> logits_in(const std::vector<Piece>& pieces, bool company = false) {
    std::vector<float> all;
    int first = 0;
    for (std::size_t i = 0; first < kLength; ++i) {
      const Piece piece = pieces[std::min(i, pieces.size() - 1)];
      const int count = std::min(piece.count, kLength - first);
      const int drafts = std::min(piece.drafts, kLength - first - count);
      BatchPlan plan;
      plan.step = i;
      plan.slices.push_back(piece_of(0, first, count, drafts));
      if (company) add_company(plan, static_cast<int>(i));
      const Status status =
          worker_->evaluate(plan, [&](std::size_t which, std::int32_t, std::span<const float> row) {
            if (plan.slices[which].sequence == 0) all.insert(all.end(), row.begin(), row.end());
          });
      CHECK(status.ok());
      first += count;
    }
    return all;
  }

  std::vector<Token> text_;
};

TEST_P(SameBits, HoweverTheTextIsCutAndInWhateverCompany) {
  const std::vector<float> whole = logits_in({{kLength}});
  EXPECT_EQ(logits_in({{64}, {171}, {7}}), whole) << "in pieces";
  EXPECT_EQ(logits_in({{1}, {150}, {9}, {40}}, true), whole) << "in company";
  if (worker_->model().kv_layout().can_take_back()) {
    EXPECT_EQ(logits_in({{250}, {1, 9}}), whole) << "with nine wrong drafts in every step";
  }
  if (GetParam().kernels == "reference") return;  // slow, and the same code but for the kernels
  EXPECT_EQ(logits_in({{7}}), whole) << "in small pieces";
  EXPECT_EQ(logits_in({{240}, {1}}), whole) << "a prompt, then token by token";
}

// What --latent-form by-shape gives up, and that the test above would see it.
class ByShape : public SameBits {};

TEST_P(ByShape, LetsBitsDependOnHowTheTextIsCut) {
  EXPECT_NE(logits_in({{kLength}}), logits_in({{7}}));
}

INSTANTIATE_TEST_SUITE_P(TinyModels, ByShape,
                         testing::Values(Case{.model = "deepseek-v3",
                                              .file = "",
                                              .kernels = "",
                                              .compute = ComputeType::kBFloat16,
                                              .by_shape = true}),
                         case_name);

std::vector<Case> bit_cases() {
  std::vector<Case> cases;
  for (const char* model : {"qwen3-yarn", "deepseek-moe", "deepseek-v2-lite", "deepseek-v3",
                            "deepseek-v32", "deepseek-v4"}) {
    for (const std::string& kernels : cpu_kernel_names()) {
      cases.push_back({model, "", kernels, ComputeType::kBFloat16});
    }
    cases.push_back({model, "", "", ComputeType::kFloat32});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(TinyModels, SameBits, testing::ValuesIn(bit_cases()), case_name);

}  // namespace
}  // namespace kun
