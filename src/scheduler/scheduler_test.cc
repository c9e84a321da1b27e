#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <numeric>

#include "scheduler/plan_trace.h"

namespace kun {
namespace {

using Finish = Scheduler::Finish;

constexpr Token kEnd = 99;
constexpr Token kOutput = 50;

// A scheduler over one KV group of blocks of 4 tokens, and a worker that always says kOutput.
class SchedulerTest : public testing::Test {
 protected:
  SchedulerTest() {
    limits_.block_counts = {16};
    limits_.tokens_per_step_max = 32;
    limits_.sequences_running_max = 8;
    limits_.context_length_max = 60;
    layout_.groups.resize(1);
    layout_.groups[0].tokens_per_block = 4;
  }

  Scheduler& scheduler() {
    if (!scheduler_) scheduler_ = std::make_unique<Scheduler>(limits_, layout_);
    return *scheduler_;
  }

  static SequenceSpec spec(SequenceId id, int prompt_count, int output_count_max = 4) {
    SequenceSpec spec;
    spec.id = id;
    spec.prompt.resize(static_cast<std::size_t>(prompt_count));
    std::iota(spec.prompt.begin(), spec.prompt.end(), static_cast<Token>(id * 1000));
    spec.output_count_max = output_count_max;
    spec.end_tokens = {kEnd};
    return spec;
  }

  void add(SequenceSpec s) { ASSERT_TRUE(scheduler().add(std::move(s), now_).ok()); }

  const BatchPlan& plan() { return scheduler().plan(now_); }

  static StepResult result_of(const BatchPlan& plan, Token token = kOutput) {
    StepResult result{.step = plan.step, .status = {}, .slices = {}};
    for (const PlanSlice& slice : plan.slices) {
      SliceResult mine{.sequence = slice.sequence, .tokens = {}, .corrupted = false};
      mine.tokens.resize(slice.wanted.size());
      for (SampledToken& sampled : mine.tokens) sampled.token = token;
      result.slices.push_back(mine);
    }
    return result;
  }

  std::vector<Scheduler::Progress> step(Token token = kOutput) {
    const BatchPlan& next = plan();
    return scheduler().apply(result_of(next, token), ++now_);
  }

  static std::vector<std::size_t> counts(const BatchPlan& plan) {
    std::vector<std::size_t> counts;
    for (const PlanSlice& slice : plan.slices) counts.push_back(slice.tokens.size());
    return counts;
  }

  SchedulerLimits limits_;
  KvLayout layout_;
  std::unique_ptr<Scheduler> scheduler_;
  Microseconds now_ = 0;
};

using Counts = std::vector<std::size_t>;

TEST_F(SchedulerTest, RefusesWhatCanNeverFit) {
  EXPECT_EQ(scheduler().add(spec(1, 60), 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler().add(spec(1, 0), 0).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler().add(spec(1, 4, 0), 0).code(), StatusCode::kInvalidArgument);
  SequenceSpec wide = spec(1, 4);
  wide.choice_count = 9;
  EXPECT_EQ(scheduler().add(wide, 0).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(scheduler().add(spec(1, 59), 0).ok());
}

TEST_F(SchedulerTest, RefusesAPromptThePoolCannotHold) {
  limits_.block_counts = {4};
  EXPECT_EQ(scheduler().add(spec(1, 17), 0).code(), StatusCode::kInvalidArgument);
  add(spec(1, 16, 30));
  // 16 computed tokens fill the pool; the one sampled from them needs no room.
  const auto progress = step();
  ASSERT_EQ(progress.size(), 1U);
  EXPECT_EQ(progress[0].finish, Finish::kLength);
}

TEST_F(SchedulerTest, RefusesForNowWhenTheLineIsFull) {
  limits_.sequences_waiting_max = 1;
  add(spec(1, 4));
  EXPECT_EQ(scheduler().add(spec(2, 4), 0).code(), StatusCode::kResourceExhausted);
}

TEST_F(SchedulerTest, ComputesALongPromptInChunksBesideDecodingSequences) {
  limits_.tokens_per_step_max = 10;
  add(spec(1, 4, 9));
  step();
  add(spec(2, 20));
  const BatchPlan& first = plan();
  EXPECT_EQ(counts(first), (Counts{1, 9}));
  EXPECT_TRUE(first.slices[1].wanted.empty());
  scheduler().apply(result_of(first), 1);
  step();
  const BatchPlan& third = plan();
  EXPECT_EQ(counts(third), (Counts{1, 2}));
  EXPECT_EQ(third.slices[1].first_position, 18);
  EXPECT_EQ(third.slices[1].wanted, (std::vector<std::int32_t>{1}));
}

TEST_F(SchedulerTest, TellsHowLongARequestWaited) {
  limits_.sequences_running_max = 1;
  add(spec(1, 4, 2));
  add(spec(2, 4, 2));
  now_ += 100;
  const auto first = step();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].queue_time, 100);
  now_ += 1000;
  step();  // the first ends; the second was not admitted before
  const auto second = step();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].sequence, 2U);
  EXPECT_EQ(second[0].queue_time, 1102);
}

TEST_F(SchedulerTest, EndsAtAnEndTokenWhichIsTold) {
  add(spec(1, 4));
  const auto progress = step(kEnd);
  ASSERT_EQ(progress.size(), 1U);
  EXPECT_EQ(progress[0].finish, Finish::kEndToken);
  EXPECT_EQ(progress[0].tokens.at(0).token, kEnd);
  EXPECT_EQ(progress[0].output_count, 1);
  EXPECT_TRUE(scheduler().idle());
}

TEST_F(SchedulerTest, GoesPastEndTokensThatAreIgnoredOrTooEarly) {
  SequenceSpec ignoring = spec(1, 4);
  ignoring.ignore_end_tokens = true;
  add(ignoring);
  SequenceSpec early = spec(2, 4);
  early.sampling.output_count_min = 2;
  add(early);
  auto progress = step(kEnd);
  EXPECT_EQ(progress.at(0).finish, Finish::kNone);
  EXPECT_EQ(progress.at(1).finish, Finish::kNone);
  progress = step(kEnd);
  EXPECT_EQ(progress.at(0).finish, Finish::kNone);
  EXPECT_EQ(progress.at(1).finish, Finish::kEndToken);
}

TEST_F(SchedulerTest, TakesAPromptFromTheCacheButForItsLastToken) {
  add(spec(1, 12, 1));
  step();
  SequenceSpec again = spec(1, 12, 1);
  again.id = 2;
  add(again);
  const BatchPlan& next = plan();
  EXPECT_EQ(next.slices.at(0).first_position, 8);
  EXPECT_EQ(next.slices[0].tokens.size(), 4U);
  const auto progress = scheduler().apply(result_of(next), 1);
  EXPECT_EQ(progress.at(0).cached_count, 8);
  const Scheduler::Stats stats = scheduler().stats();
  EXPECT_EQ(stats.prompt_token_count, 24U);
  EXPECT_EQ(stats.computed_prompt_token_count, 16U);
  EXPECT_EQ(stats.prefix_query_token_count, 24U);
  EXPECT_EQ(stats.prefix_hit_token_count, 8U);
}

TEST_F(SchedulerTest, NeverSharesCacheBetweenSalts) {
  add(spec(1, 12, 1));
  step();
  SequenceSpec other = spec(1, 12, 1);
  other.id = 2;
  other.cache_salt = "another tenant";
  add(other);
  EXPECT_EQ(plan().slices.at(0).first_position, 0);
}

TEST_F(SchedulerTest, ForgetsTheBlocksOfACorruptedSequence) {
  limits_.tokens_per_step_max = 8;
  add(spec(1, 12, 1));
  step();  // publishes two blocks before anybody can know
  const BatchPlan& last = plan();
  StepResult bad = result_of(last);
  bad.slices[0].corrupted = true;
  bad.slices[0].tokens.clear();
  const auto progress = scheduler().apply(bad, 1);
  EXPECT_EQ(progress.at(0).finish, Finish::kCorrupted);
  SequenceSpec again = spec(1, 12, 1);
  again.id = 2;
  add(again);
  EXPECT_EQ(plan().slices.at(0).first_position, 0);
}

TEST_F(SchedulerTest, FailsTheSequencesOfAFailedStepAndNoOthers) {
  limits_.sequences_running_max = 1;
  add(spec(1, 4));
  add(spec(2, 4));
  const std::uint64_t number = plan().step;
  const auto progress =
      scheduler().apply({.step = number, .status = internal_error("x"), .slices = {}}, 1);
  ASSERT_EQ(progress.size(), 1U);
  EXPECT_EQ(progress[0].sequence, 1U);
  EXPECT_EQ(progress[0].finish, Finish::kFailed);
  EXPECT_EQ(plan().slices.at(0).sequence, 2U);
}

TEST_F(SchedulerTest, FailsAStepWhoseResultIsNotForItsPlan) {
  add(spec(1, 4));
  StepResult wrong = result_of(plan());
  wrong.slices[0].tokens.clear();
  EXPECT_EQ(scheduler().apply(wrong, 1).at(0).finish, Finish::kFailed);
}

TEST_F(SchedulerTest, ComputesThePromptOfSeveralChoicesOnce) {
  SequenceSpec three = spec(1, 6, 3);
  three.choice_count = 3;
  add(three);
  const BatchPlan& first = plan();
  EXPECT_EQ(counts(first), (Counts{6}));
  EXPECT_EQ(first.slices[0].wanted, (std::vector<std::int32_t>{5, 5, 5}));
  ASSERT_EQ(scheduler().sampling().rows.size(), 3U);
  EXPECT_EQ(scheduler().sampling().rows[2].choice, 2U);
  EXPECT_EQ(scheduler().apply(result_of(first), 1).size(), 3U);

  // The full block is shared; the partial one is copied by all but the last to write it.
  const BatchPlan& second = plan();
  ASSERT_EQ(counts(second), (Counts{1, 1, 1}));
  EXPECT_EQ(second.block_copies.size(), 2U);
  EXPECT_EQ(second.slices[0].blocks[0][0], second.slices[2].blocks[0][0]);
  EXPECT_NE(second.slices[0].blocks[0][1], second.slices[2].blocks[0][1]);
  scheduler().apply(result_of(second), 2);
  EXPECT_TRUE(plan().block_copies.empty());
}

TEST_F(SchedulerTest, StopsOneChoiceAndLetsTheOthersGoOn) {
  SequenceSpec two = spec(1, 6, 8);
  two.choice_count = 2;
  add(two);
  step();
  step();
  scheduler().stop(1, 0, 1);
  EXPECT_FALSE(scheduler().idle());
  const auto progress = step();
  ASSERT_EQ(progress.size(), 2U);
  EXPECT_EQ(progress[0].finish, Finish::kStopped);
  EXPECT_TRUE(progress[0].tokens.empty());
  EXPECT_EQ(progress[0].output_count, 1);
  EXPECT_EQ(progress[1].choice, 1U);
  EXPECT_EQ(progress[1].output_count, 3);
}

TEST_F(SchedulerTest, TellsOfAStopEvenWhenNothingRunsAnyMore) {
  add(spec(1, 4));
  step();
  scheduler().stop(1, 0, 1);
  const BatchPlan& empty = plan();
  EXPECT_TRUE(empty.empty());
  EXPECT_FALSE(scheduler().idle());
  EXPECT_EQ(scheduler().apply({.step = empty.step, .status = {}, .slices = {}}, 1).at(0).finish,
            Finish::kStopped);
  EXPECT_TRUE(scheduler().idle());
}

TEST_F(SchedulerTest, DropsWhatAStepComputesForASequenceCancelledMeanwhile) {
  add(spec(1, 4));
  const StepResult result = result_of(plan());
  scheduler().cancel(1);
  EXPECT_TRUE(scheduler().apply(result, 1).empty());
  EXPECT_TRUE(scheduler().idle());
  EXPECT_EQ(scheduler().stats().free_block_count, 16);
}

TEST_F(SchedulerTest, PreemptsTheYoungestOfTheLowestPriorityForAHigherOne) {
  limits_.sequences_running_max = 2;
  SequenceSpec low = spec(1, 4);
  low.priority = 5;
  SequenceSpec younger = spec(2, 4);
  younger.priority = 5;
  add(low);
  add(younger);
  step();
  add(spec(3, 4));
  const BatchPlan& next = plan();
  ASSERT_EQ(next.slices.size(), 2U);
  EXPECT_EQ(next.slices[0].sequence, 3U);
  EXPECT_EQ(next.slices[1].sequence, 1U);
  EXPECT_EQ(scheduler().stats().preemption_count, 1U);
}

TEST_F(SchedulerTest, PreemptsNobodyInVain) {
  limits_.block_counts = {8};
  add(spec(1, 20, 12));  // 5 of 8 blocks
  SequenceSpec low = spec(2, 4);
  low.priority = 5;
  add(low);
  step();
  add(spec(3, 16));  // would not fit even without the low one
  const BatchPlan& next = plan();
  ASSERT_EQ(next.slices.size(), 2U);
  EXPECT_EQ(next.slices[1].sequence, 2U);
  EXPECT_EQ(scheduler().stats().preemption_count, 0U);
}

TEST_F(SchedulerTest, CountsBlocksThatOthersHoldTooAsNoRoom) {
  add(spec(1, 12, 20));
  step();
  SequenceSpec low = spec(2, 12, 20);
  low.prompt = spec(1, 12).prompt;  // finds three blocks, which the first one holds as well
  low.prompt.push_back(7);
  low.priority = 5;
  add(low);
  step();
  // 4 blocks of the first, 1 of the low one alone: 11 of 16 are free. With one to spare, twelve
  // would fit if those of the low one counted four times.
  SequenceSpec large = spec(3, 48);
  large.priority = 3;
  add(large);
  EXPECT_EQ(counts(plan()), (Counts{1, 1}));
  EXPECT_EQ(scheduler().stats().preemption_count, 0U);
}

TEST_F(SchedulerTest, SendsAwayNoMoreSiblingsThanItTakes) {
  SequenceSpec low = spec(1, 14, 20);
  low.choice_count = 3;
  low.priority = 5;
  add(low);
  step();
  step();
  // The choices hold 3 blocks together and one each: with the youngest gone 11 are free.
  add(spec(2, 44, 4));
  EXPECT_EQ(counts(plan()), (Counts{30, 1, 1}));
  EXPECT_EQ(scheduler().stats().preemption_count, 1U);
}

TEST_F(SchedulerTest, LetsAHigherPriorityInWhenDecodingSequencesTakeTheWholeBudget) {
  limits_.tokens_per_step_max = 2;
  for (const SequenceId id : {SequenceId{1}, SequenceId{2}}) {
    SequenceSpec low = spec(id, 1, 20);
    low.priority = 5;
    add(low);
  }
  step();
  add(spec(3, 1));
  EXPECT_EQ(plan().slices.at(0).sequence, 3U);
}

TEST_F(SchedulerTest, LetsNobodyPassALongPromptThatWaits) {
  limits_.block_counts = {8};
  add(spec(1, 20, 8));
  step();
  add(spec(2, 16));
  add(spec(3, 1));
  EXPECT_EQ(plan().slices.size(), 1U);
}

TEST_F(SchedulerTest, HoldsOfAGroupWithAWindowOnlyWhatTheNextTokenReads) {
  layout_.groups.push_back({.tokens_per_block = 4, .window = 6});
  limits_.block_counts = {16, 4};
  add(spec(1, 40, 4));
  // The pool of windows bounds the steps: 4 blocks, then the 2 of them that positions from 11 on
  // are in and 2 more.
  std::vector<std::size_t> pieces;
  for (int left = 40; left > 0; left -= static_cast<int>(pieces.back())) {
    const BatchPlan& next = plan();
    pieces.push_back(counts(next).at(0));
    scheduler().apply(result_of(next), now_);
  }
  EXPECT_EQ(pieces, (std::vector<std::size_t>{16, 8, 8, 8}));
  const PlanSlice& slice = plan().slices.at(0);
  EXPECT_EQ(slice.first_position, 40);
  ASSERT_EQ(slice.blocks[1].size(), 11U);
  for (std::size_t b = 0; b < 8; ++b) EXPECT_EQ(slice.blocks[1][b], kNoBlock);
  for (std::size_t b = 8; b < 11; ++b) EXPECT_NE(slice.blocks[1][b], kNoBlock);
  EXPECT_EQ(slice.blocks[0].size(), 11U);
  EXPECT_NE(slice.blocks[0][0], kNoBlock);
}

TEST_F(SchedulerTest, AdmitsWhatTheFullGroupsHoldThoughWindowsHaveLittleRoom) {
  layout_.groups.push_back({.tokens_per_block = 4, .window = 4});
  limits_.block_counts = {32, 7};
  limits_.tokens_per_step_max = 8;
  add(spec(1, 40));
  add(spec(2, 40));
  // Both together take 20 blocks of the full group, and 2 to 4 each of the other.
  std::size_t most = 0;
  for (int i = 0; i < 12; ++i) {
    const BatchPlan& next = plan();
    most = std::max(most, next.slices.size());
    scheduler().apply(result_of(next), now_);
  }
  EXPECT_EQ(most, 2U);
  EXPECT_EQ(scheduler().stats().preemption_count, 0U);
}

class StepTime : public SchedulerTest {
 protected:
  StepTime() {
    limits_.block_counts = {8192};
    limits_.context_length_max = 16000;
    limits_.tokens_per_step_max = 2048;
    limits_.tokens_per_step_min = 16;
    limits_.prefix_caching = false;
  }

  // Tokens per step while one sequence reads and a long prompt arrives, on a worker whose step
  // costs 1000 us and 10 us per token. Checks that nothing holds the first prompt back.
  std::vector<double> step_totals() {
    add(spec(1, 2000, 1000));
    std::vector<double> totals;
    for (int i = 0; i < 40; ++i) {
      if (i == 1) add(spec(2, 15000));
      const BatchPlan& next = plan();
      const Counts each = counts(next);
      const auto total = std::accumulate(each.begin(), each.end(), std::size_t{0});
      totals.push_back(static_cast<double>(total));
      now_ += 1000 + 10 * static_cast<Microseconds>(total);
      scheduler().apply(result_of(next), now_);
    }
    EXPECT_EQ(totals[0], 2000.0);
    return totals;
  }
};

TEST_F(StepTime, FitsPromptsIntoTheTargetWhileSomebodyReads) {
  limits_.step_time_target = 4000;
  const std::vector<double> totals = step_totals();
  for (std::size_t i = 20; i < 40; ++i) EXPECT_NEAR(totals[i], 300.0, 5.0);
}

TEST_F(StepTime, SlowsReadersDownByNoMoreThanAllowed) {
  limits_.decode_slowdown_max = 2.0;
  const std::vector<double> totals = step_totals();
  // 2 x (1000 + 10) us hold 102 tokens.
  for (std::size_t i = 20; i < 40; ++i) EXPECT_NEAR(totals[i], 102.0, 3.0);
}

TEST_F(SchedulerTest, WritesATraceWithoutTokens) {
  add(spec(7, 5));
  const BatchPlan& next = plan();
  EXPECT_EQ(trace_header(limits_, layout_),
            R"({"kun_trace":1,"tokens_per_step_max":32,)"
            R"("groups":[{"tokens_per_block":4,"block_count":16}]})");
  EXPECT_EQ(trace_line(next, result_of(next), 3),
            R"({"step":1,"now":3,"copies":[],"slices":[{"sequence":7,"choice":0,"first":0,)"
            R"("count":5,"drafts":0,"wanted":1,"blocks":[[0,1]]}],"status":"ok",)"
            R"("results":[{"tokens":1,"corrupted":false}]})");
}

TEST_F(SchedulerTest, LetsPromptsThatBeginAlikeAndComeTogetherShareTheBeginning) {
  for (const SequenceId id : {SequenceId{1}, SequenceId{2}, SequenceId{3}}) {
    SequenceSpec alike = spec(id, 9);
    std::iota(alike.prompt.begin(), alike.prompt.begin() + 8, Token{0});
    if (id == 3) alike.cache_salt = "somebody else's";
    add(std::move(alike));
  }
  const BatchPlan& first = plan();
  EXPECT_EQ(counts(first), (Counts{9}));  // the second waits, and nobody passes it
  scheduler().apply(result_of(first), ++now_);
  EXPECT_EQ(counts(plan()), (Counts{1, 1, 9}));
}

}  // namespace
}  // namespace kun
