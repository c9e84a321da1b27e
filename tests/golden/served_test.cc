// Scheduler and model together: what a request gets among others, preempted, from cached prefixes,
// with right and wrong drafts, out of windows whose blocks pass on to others, must equal to the
// last bit what it gets alone on an empty machine. One model of each kind of cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/checkpoint.h"
#include "executor/worker.h"
#include "models/registry.h"
#include "scheduler/scheduler.h"

namespace kun {
namespace {

using ChoiceKey = std::pair<SequenceId, std::uint32_t>;
using Answers =
    std::map<ChoiceKey, std::vector<std::pair<Token, float>>>;  // token, log probability

struct Case {
  std::string model;
  std::string kernels;
};

class Served : public testing::TestWithParam<Case> {
 protected:
  static constexpr int kVocabulary = 48;
  static constexpr int kStepsMax = 2000;

  void SetUp() override {
    auto device = open_cpu_device({.thread_count = 2, .kernels = GetParam().kernels});
    ASSERT_TRUE(device) << device.error().message();
    device_ = *std::move(device);
    auto checkpoint =
        open_checkpoint(std::filesystem::path(KUN_TEST_DATA) / "tiny-models" / GetParam().model);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message();
    checkpoint_ = *std::move(checkpoint);
    auto model = load_model(*checkpoint_, device_->ops(), {.cache_dtype = device_->cache_dtype()});
    ASSERT_TRUE(model) << model.error().message();
    model_ = *std::move(model);
  }

  // `token_count` of them; those of one seed begin alike.
  static SequenceSpec spec(SequenceId id, unsigned seed, int token_count) {
    SequenceSpec made;
    made.id = id;
    std::mt19937 random(seed);
    for (int i = 0; i < token_count; ++i) {
      made.prompt.push_back(static_cast<Token>(random() % kVocabulary));
    }
    made.output_count_max = 24;
    made.sampling.temperature = 0.0F;
    made.sampling.logprob_count = 0;
    return made;
  }

  // Blocks for `token_count` tokens, of a group with a window for `window_count`.
  std::vector<int> block_counts(int token_count, int window_count) const {
    std::vector<int> counts;
    for (const KvGroup& group : model_->kv_layout().groups) {
      counts.push_back((group.window > 0 ? window_count : token_count) / group.tokens_per_block);
    }
    return counts;
  }

  void start(const SchedulerLimits& limits) {
    auto worker =
        Worker::create(model_, device_->ops(),
                       {.block_counts = limits.block_counts, .vocabulary_limit = kVocabulary});
    ASSERT_TRUE(worker) << worker.error().message();
    worker_ = *std::move(worker);
    scheduler_ = std::make_unique<Scheduler>(limits, model_->kv_layout());
  }

  // What comes next in the text that is known from before, every third token of it wrong.
  void draft(const Answers& known) {
    std::vector<std::vector<Token>> drafts;
    for (const DraftWish& wish : scheduler_->draft_wishes()) {
      const auto& text = known.at({wish.sequence, wish.choice});
      const std::size_t said = wish.history.size() - static_cast<std::size_t>(wish.prompt_count);
      std::vector<Token>& mine = drafts.emplace_back();
      for (std::size_t i = said; std::ssize(mine) < wish.count_max; ++i) {
        const Token right = i < text.size() ? text[i].first : 0;
        mine.push_back(i % 3 == 2 ? (right + 1) % kVocabulary : right);
      }
    }
    if (!drafts.empty()) scheduler_->offer_drafts(drafts, 0);
  }

  void step(Answers& answers, const Answers* known) {
    if (known != nullptr) draft(*known);
    const BatchPlan& plan = scheduler_->plan(++now_);
    const Status status = worker_->forward(plan);
    ASSERT_TRUE(status.ok()) << status.message();
    const StepResult result = worker_->sample(plan, scheduler_->sampling());
    for (const Scheduler::Progress& progress : scheduler_->apply(result, ++now_)) {
      auto& mine = answers[{progress.sequence, progress.choice}];
      for (const SampledToken& token : progress.tokens) {
        mine.emplace_back(token.token, token.logprob);
      }
    }
  }

  // Every request on a machine of its own, whose prompt is one piece.
  Answers alone(const std::vector<SequenceSpec>& specs) {
    Answers answers;
    for (const SequenceSpec& one : specs) {
      SchedulerLimits limits;
      limits.block_counts = block_counts(1024, 1024);
      limits.prefix_caching = false;
      start(limits);
      EXPECT_TRUE(scheduler_->add(one, now_).ok());
      for (int i = 0; i < kStepsMax && !scheduler_->idle(); ++i) step(answers, nullptr);
    }
    return answers;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Scheduler> scheduler_;
  Microseconds now_ = 0;
};

TEST_P(Served, GivesInCompanyWhatItGivesAlone) {
  std::vector<SequenceSpec> specs{spec(1, 7, 300), spec(2, 7, 290), spec(3, 8, 20)};
  specs[0].choice_count = 2;
  specs[0].sampling.temperature = 0.9F;
  specs[0].sampling.seed = 5;
  specs[1].prompt.back() = (specs[1].prompt.back() + 1) % kVocabulary;
  for (SequenceSpec& one : specs) one.priority = one.id == 3 ? 0 : 1;
  const Answers wanted = alone(specs);

  SchedulerLimits limits;
  limits.block_counts = block_counts(1024, 640);
  limits.tokens_per_step_max = 40;
  limits.sequences_running_max = 3;
  limits.label_key[0] = 1;
  if (model_->kv_layout().can_take_back()) limits.draft_count_max = 9;
  limits.adaptive_drafts = false;
  start(limits);
  Answers answers;
  ASSERT_TRUE(scheduler_->add(specs[0], now_).ok());
  ASSERT_TRUE(scheduler_->add(specs[1], now_).ok());
  for (int i = 0; i < kStepsMax && !scheduler_->idle(); ++i) {
    if (i == 10) {  // the second, which is the last of the order, must make room
      ASSERT_TRUE(scheduler_->add(specs[2], now_).ok());
    }
    step(answers, &wanted);
  }
  EXPECT_EQ(answers, wanted);
  const Scheduler::Stats stats = scheduler_->stats();
  EXPECT_GE(stats.prefix_hit_token_count, 256U);
  EXPECT_GE(stats.preemption_count, 1U);
  EXPECT_EQ(stats.free_block_count, stats.total_block_count);
  if (limits.draft_count_max > 0) {
    EXPECT_GT(stats.accepted_token_count, 20U);
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* model : {"deepseek-v2-lite", "deepseek-v3", "deepseek-v32", "deepseek-v4"}) {
    for (const std::string& kernels : cpu_kernel_names()) cases.push_back({model, kernels});
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.model + "_" + info.param.kernels;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(TinyModels, Served, testing::ValuesIn(all_cases()), case_name);

}  // namespace
}  // namespace kun
