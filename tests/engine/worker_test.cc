#include "executor/worker.h"

#include <gtest/gtest.h>

#include <cmath>

#include "host_ops.h"
#include "house.h"

namespace kun {
namespace {

std::shared_ptr<const Model> script(std::string_view text) {
  auto model = make_script_model(text);
  CHECK(model.has_value());
  return *std::move(model);
}

std::unique_ptr<Worker> make_worker(std::shared_ptr<const Model> model, Ops& ops,
                                    WorkerOptions options) {
  auto worker = Worker::create(std::move(model), ops, std::move(options));
  CHECK(worker.has_value());
  return *std::move(worker);
}

PlanSlice slice(SequenceId id, std::int32_t first, std::string_view text,
                std::vector<BlockId> blocks, std::vector<std::int32_t> wanted) {
  PlanSlice result;
  result.sequence = id;
  result.first_position = first;
  result.tokens = bytes(text);
  result.blocks = {std::move(blocks)};
  result.wanted = std::move(wanted);
  return result;
}

class Greedy {
 public:
  explicit Greedy(std::size_t row_count) {
    params_.temperature = 0.0F;
    batch_.rows.assign(row_count, {&params_, history_, 1, 0});
  }
  const SamplingBatch& batch() const { return batch_; }

 private:
  std::vector<Token> history_{0};
  SamplingParams params_;
  SamplingBatch batch_;
};

TEST(Worker, RunsChunksOfSeveralSequencesThroughTheirBlocks) {
  HostOps ops;
  auto worker = make_worker(
      script("block 4\nprompt ends \"56\"\n emit \"X\"\nprompt *\n emit \"Y\""), ops, {{8}});
  BatchPlan first{.step = 1, .block_copies = {}, .slices = {}};
  first.slices.push_back(slice(7, 0, "12345", {6, 1}, {}));
  first.slices.push_back(slice(8, 0, "ab", {3}, {1}));
  ASSERT_TRUE(worker->forward(first).ok());
  StepResult result = worker->sample(first, Greedy(1).batch());
  ASSERT_TRUE(result.status.ok());
  EXPECT_EQ(result.step, 1U);
  ASSERT_EQ(result.slices.size(), 2U);
  EXPECT_TRUE(result.slices[0].tokens.empty());
  ASSERT_EQ(result.slices[1].tokens.size(), 1U);
  EXPECT_EQ(result.slices[1].tokens[0].token, 'Y');

  BatchPlan second{.step = 2, .block_copies = {}, .slices = {}};
  second.slices.push_back(slice(7, 5, "6", {6, 1}, {0}));
  ASSERT_TRUE(worker->forward(second).ok());
  result = worker->sample(second, Greedy(1).batch());
  EXPECT_EQ(result.slices[0].sequence, 7U);
  EXPECT_EQ(result.slices[0].tokens.at(0).token, 'X');
}

TEST(Worker, CopiesBlocksBeforeAnythingElse) {
  HostOps ops;
  auto worker = make_worker(
      script("block 4\nprompt is \"abZ\"\n emit \"X\"\nprompt *\n emit \"Y\""), ops, {{4}});
  BatchPlan plan{.step = 1, .block_copies = {}, .slices = {}};
  plan.slices.push_back(slice(1, 0, "ab", {0}, {}));
  ASSERT_TRUE(worker->forward(plan).ok());
  plan.slices = {slice(1, 2, "c", {0}, {}), slice(2, 2, "Z", {3}, {0})};
  plan.block_copies = {{0, 0, 3}};
  ASSERT_TRUE(worker->forward(plan).ok());
  EXPECT_EQ(worker->sample(plan, Greedy(1).batch()).slices[1].tokens.at(0).token, 'X');
}

TEST(Worker, SamplesARowAsOftenAsItIsWanted) {
  HostOps ops;
  auto worker = make_worker(script("prompt *\n emit \"A\""), ops, {{4}});
  BatchPlan plan{.step = 1, .block_copies = {}, .slices = {}};
  plan.slices.push_back(slice(1, 0, "ab", {0}, {1, 1, 1}));
  plan.slices.push_back(slice(2, 0, "abc", {1}, {0, 2}));
  ASSERT_TRUE(worker->forward(plan).ok());
  const StepResult result = worker->sample(plan, Greedy(5).batch());
  ASSERT_EQ(result.slices[0].tokens.size(), 3U);
  EXPECT_EQ(result.slices[1].tokens.size(), 2U);
  for (const SampledToken& token : result.slices[0].tokens) EXPECT_EQ(token.token, 'A');
}

TEST(Worker, MarksOnlyTheSliceWithARowThatIsNotFinite) {
  HostOps ops;
  auto worker = make_worker(script("prompt is \"bad\"\n nan\nprompt *\n emit \"A\""), ops, {{4}});
  BatchPlan plan{.step = 1, .block_copies = {}, .slices = {}};
  plan.slices.push_back(slice(1, 0, "good", {0}, {3}));
  plan.slices.push_back(slice(2, 0, "bad", {1}, {1, 2}));
  ASSERT_TRUE(worker->forward(plan).ok());
  const StepResult result = worker->sample(plan, Greedy(3).batch());
  EXPECT_TRUE(result.status.ok());
  EXPECT_FALSE(result.slices[0].corrupted);
  EXPECT_EQ(result.slices[0].tokens.size(), 1U);
  EXPECT_TRUE(result.slices[1].corrupted);
  EXPECT_TRUE(result.slices[1].tokens.empty());
}

// Logits that tell which row they belong to, and the largest chunk asked for.
class EchoModel final : public Model {
 public:
  EchoModel() { layout_.groups.push_back({4, {0}, {{"nothing", DType::kU8, 1}}}); }
  int vocabulary_size() const override { return 1000; }
  int hidden_size() const override { return 1; }
  int context_length_max() const override { return 4096; }
  const KvLayout& kv_layout() const override { return layout_; }
  Status forward(const ForwardBatch& batch, const KvStorage&, TensorView hidden) const override {
    for (std::size_t i = 0; i < batch.wanted_rows.size(); ++i) {
      const auto row = static_cast<std::size_t>(batch.wanted_rows[i]);
      *hidden.row<float>(static_cast<std::int64_t>(i)) =
          static_cast<float>(batch.tokens[row] * 1000 + batch.positions[row]);
    }
    return {};
  }
  Status logits(ConstTensorView hidden, TensorView out) const override {
    largest_chunk = std::max(largest_chunk, hidden.rows());
    for (std::int64_t i = 0; i < hidden.rows(); ++i) {
      std::fill_n(out.row<float>(i), out.cols(), *hidden.row<float>(i));
    }
    return {};
  }

  mutable std::int64_t largest_chunk = 0;

 private:
  KvLayout layout_;
};

TEST(Worker, SumsHiddenStatesWithoutLogitsForThem) {
  HostOps ops;
  auto model = std::make_shared<EchoModel>();
  auto worker = make_worker(model, ops, {{8}});
  BatchPlan plan{.step = 1, .block_copies = {}, .slices = {}};
  plan.slices.push_back(slice(1, 0, "ab", {0}, {0, 1}));
  plan.slices.back().pooling = Pooling::kMean;
  plan.slices.push_back(slice(2, 0, "c", {1}, {0}));
  plan.slices.push_back(slice(3, 0, "def", {2}, {2}));
  plan.slices.back().pooling = Pooling::kLast;
  plan.slices.push_back(slice(4, 0, "gh", {3}, {}));
  plan.slices.back().pooling = Pooling::kLast;
  plan.slices.push_back(slice(5, 0, "ij", {4}, {1, 1}));
  ASSERT_TRUE(worker->forward(plan).ok());
  const StepResult result = worker->sample(plan, Greedy(3).batch());
  EXPECT_EQ(result.slices[0].pooled, (std::vector<double>{'a' * 1000.0 + 'b' * 1000.0 + 1.0}));
  EXPECT_EQ(result.slices[2].pooled, (std::vector<double>{'f' * 1000.0 + 2.0}));
  EXPECT_TRUE(result.slices[3].pooled.empty());
  EXPECT_EQ(result.slices[1].tokens.size(), 1U);
  EXPECT_EQ(result.slices[4].tokens.size(), 2U);
  EXPECT_EQ(model->largest_chunk, 2) << "the rows of slices 2 and 5";
}

TEST(Worker, MarksASliceWhoseSumIsNotFinite) {
  class Broken final : public Model {
   public:
    int vocabulary_size() const override { return echo_.vocabulary_size(); }
    int hidden_size() const override { return 1; }
    int context_length_max() const override { return 4096; }
    const KvLayout& kv_layout() const override { return echo_.kv_layout(); }
    Status forward(const ForwardBatch& batch, const KvStorage&, TensorView hidden) const override {
      for (std::size_t i = 0; i < batch.wanted_rows.size(); ++i) {
        const bool bad = batch.tokens[static_cast<std::size_t>(batch.wanted_rows[i])] == 'x';
        *hidden.row<float>(static_cast<std::int64_t>(i)) = bad ? std::nanf("") : 1.0F;
      }
      return {};
    }
    Status logits(ConstTensorView hidden, TensorView out) const override {
      return echo_.logits(hidden, out);
    }

   private:
    EchoModel echo_;
  };
  HostOps ops;
  auto worker = make_worker(std::make_shared<Broken>(), ops, {{4}});
  BatchPlan plan{.step = 1, .block_copies = {}, .slices = {}};
  for (const std::string_view text : {"ax", "ab"}) {
    plan.slices.push_back(slice(1, 0, text, {std::ssize(plan.slices) == 0 ? 0 : 1}, {0, 1}));
    plan.slices.back().pooling = Pooling::kMean;
  }
  ASSERT_TRUE(worker->forward(plan).ok());
  const StepResult result = worker->sample(plan, {});
  EXPECT_TRUE(result.slices[0].corrupted);
  EXPECT_TRUE(result.slices[0].pooled.empty());
  EXPECT_FALSE(result.slices[1].corrupted);
  EXPECT_EQ(result.slices[1].pooled, std::vector<double>{2.0});
}

TEST(Worker, EvaluatesATextInChunksOfRowsInOrder) {
  HostOps ops;
  auto model = std::make_shared<EchoModel>();
  auto worker = make_worker(model, ops, {{30}, 0, 3 * 4000});
  std::vector<Token> tokens;
  for (Token t = 0; t < 100; ++t) tokens.push_back(t % 7);
  std::int32_t next = 0;
  const Status status = worker->evaluate_text(
      tokens, 16, [&](std::size_t, std::int32_t offset, std::span<const float> logits) {
        ASSERT_EQ(offset, next);
        ASSERT_EQ(logits.size(), 1000U);
        EXPECT_EQ(logits.front(), static_cast<float>((offset % 7) * 1000 + offset));
        EXPECT_EQ(logits.back(), logits.front());
        ++next;
      });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(next, 100);
  EXPECT_EQ(model->largest_chunk, 3) << "12000 bytes hold three rows";
}

TEST(Worker, RefusesToEvaluateATextLongerThanItsCache) {
  HostOps ops;
  auto worker = make_worker(std::make_shared<EchoModel>(), ops, {{2}});
  const std::vector<Token> tokens(9, 1);
  const Status status = worker->evaluate_text(tokens, 4, [](auto...) { FAIL(); });
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST(Worker, SaysWhatIsWrongWithItsCache) {
  HostOps ops;
  const auto model = std::make_shared<EchoModel>();
  const auto create = [&](std::vector<int> counts) {
    auto worker = Worker::create(model, ops, {std::move(counts)});
    EXPECT_FALSE(worker.has_value());
    return worker.has_value() ? Status() : worker.error();
  };
  EXPECT_EQ(create({1, 1}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create({0}).code(), StatusCode::kResourceExhausted);
  ops.bytes_max = 1000;
  EXPECT_EQ(create({1000}).code(), StatusCode::kResourceExhausted);
}

TEST(Worker, ProgressGrowsWithTilesAndWithPhases) {
  HostOps ops;
  auto worker = make_worker(std::make_shared<EchoModel>(), ops, {{4}});
  const std::uint64_t start = worker->progress();
  ++ops.tiles;
  EXPECT_EQ(worker->progress(), start + 1);
  BatchPlan plan{.step = 1, .block_copies = {}, .slices = {}};
  plan.slices.push_back(slice(1, 0, "ab", {0}, {1}));
  ASSERT_TRUE(worker->forward(plan).ok());
  EXPECT_GT(worker->progress(), start + 1);
}

TEST(LocalExecutor, AcceptsTheSamplingBatchBeforeAndAfterTheForwardPass) {
  HostOps ops;
  for (const int delay_ms : {0, 20}) {
    LocalExecutor executor(make_worker(script("step_us 5000\nprompt *\n emit \"A\""), ops, {{4}}));
    for (std::uint64_t step = 1; step < 4; ++step) {
      BatchPlan plan{.step = step, .block_copies = {}, .slices = {}};
      plan.slices.push_back(slice(1, 0, "ab", {0}, {1}));
      const Greedy greedy(1);
      executor.submit(plan);
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      executor.supply(greedy.batch());
      const StepResult result = executor.wait();
      ASSERT_TRUE(result.status.ok());
      EXPECT_EQ(result.step, step);
      EXPECT_EQ(result.slices.at(0).tokens.at(0).token, 'A');
    }
  }
}

TEST(LocalExecutor, EndsWhileAStepWaitsForItsSamplingBatch) {
  HostOps ops;
  BatchPlan plan{.step = 1, .block_copies = {}, .slices = {}};
  plan.slices.push_back(slice(1, 0, "ab", {0}, {1}));
  LocalExecutor executor(make_worker(script("prompt *\n emit \"A\""), ops, {{4}}));
  executor.submit(plan);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace
}  // namespace kun
