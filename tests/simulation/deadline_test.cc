// Deadlines and forecasts, on a worker whose steps take a known time.
#include <gtest/gtest.h>

#include "load.h"

namespace kun {
namespace {

using Finish = Scheduler::Finish;

// Has the scheduler learn what steps cost: prompts of several sizes, and readers.
void learn(Load& load) {
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(load.add(load.request("", 1.0, 40 + 70 * i, 12)).ok());
    load.step();
    load.step();
  }
  while (!load.scheduler().idle()) load.step();
}

SequenceSpec timed(Load& load, int prompt, int output, Deadlines deadlines) {
  SequenceSpec spec = load.request("", 1.0, prompt, output);
  spec.deadlines = deadlines;
  return spec;
}

TEST(Deadline, ThatNoServerCouldKeepIsTheRequestsOwnFault) {
  Load load;
  learn(load);
  // 5,000 tokens are ten steps and 60 ms.
  const Status status = load.add(timed(load, 5000, 10, {.first_token = 20'000}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(load.scheduler().refusal().code, kCodeDeadlineImpossible);
  EXPECT_NE(status.message().find("ttft_slo_ms is 20"), std::string::npos) << status.message();
  EXPECT_EQ(load.add(timed(load, 10, 10, {.per_token = 400})).code(), StatusCode::kInvalidArgument);
  // 1,000 tokens that must come take a second.
  EXPECT_EQ(load.add(timed(load, 10, 1000, {.total = 400'000})).code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(load.add(timed(load, 5000, 10, {.first_token = 70'000})).ok());
}

// What is read and not continued: its vector is all that is waited for.
TEST(Deadline, OfATextThatIsPooledIsAboutItsPromptOnly) {
  Load load;
  learn(load);
  const auto pooled = [&](Pooling pooling, Deadlines deadlines) {
    SequenceSpec spec = timed(load, 5000, 16, deadlines);
    spec.pooling = pooling;
    return spec;
  };
  // 5,000 tokens are ten steps and 60 ms; no output comes after them.
  EXPECT_EQ(load.add(pooled(Pooling::kLast, {.total = 25'000})).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(load.scheduler().refusal().code, kCodeDeadlineImpossible);
  SequenceSpec spec = pooled(Pooling::kLast, {.first_token = 70'000, .total = 70'000});
  const std::vector<Token> prompt = spec.prompt;
  const SequenceId id = spec.id;
  ASSERT_TRUE(load.add(std::move(spec)).ok());
  while (!load.served[id].ended_at) load.step();
  EXPECT_EQ(load.served[id].finish, Finish::kPooled);
  // Now its prompt is in the cache, which has no hidden states for a mean.
  for (const auto& [pooling, code] : {std::pair{Pooling::kLast, StatusCode::kOk},
                                      std::pair{Pooling::kMean, StatusCode::kInvalidArgument}}) {
    SequenceSpec again = pooled(pooling, {.first_token = 10'000});
    again.prompt = prompt;
    EXPECT_EQ(load.add(std::move(again)).code(), code);
  }
  while (!load.scheduler().idle()) load.step();
  SequenceSpec late = pooled(Pooling::kMean, {.total = 70'000});
  const SequenceId last = late.id;
  ASSERT_TRUE(load.add(std::move(late)).ok());
  load.step();
  load.now += 80'000;
  while (!load.served[last].ended_at) load.step();
  EXPECT_EQ(load.served[last].finish, Finish::kTimeout);
}

TEST(Deadline, ThatCannotBeKeptBehindTheLineIsRefusedWithATimeThatComesTrue) {
  int refused = 0;
  int kept = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Load load(seed);
    learn(load);
    const int count = load.pick(10, 60);
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(load.add(load.request("", 1.0, load.pick(50, 800), load.pick(20, 200))).ok());
    }
    for (int i = load.pick(0, 30); i > 0; --i) load.step();
    const Deadlines deadlines{.first_token = 30'000};
    if (load.add(timed(load, 100, 10, deadlines)).ok()) continue;
    ++refused;
    ASSERT_EQ(load.scheduler().refusal().code, kCodeDeadlineUnreachable);
    const auto expected = static_cast<double>(load.scheduler().refusal().retry_after);
    const Microseconds begin = load.now;
    load.step();
    SequenceSpec again = timed(load, 100, 10, deadlines);
    const SequenceId id = again.id;
    while (!load.add(again).ok()) load.step();
    const auto actual = static_cast<double>(load.now - begin);
    EXPECT_LT(actual, 2.0 * expected + 6'000) << "seed " << seed;
    EXPECT_GT(actual, 0.5 * expected - 6'000) << "seed " << seed;
    while (!load.served[id].ended_at) load.step();
    const Served& served = load.served[id];
    if (served.first_token_at && *served.first_token_at - served.added_at <= 30'000) ++kept;
  }
  EXPECT_GT(refused, 6);
  EXPECT_GE(kept, refused * 9 / 10);
}

TEST(Deadline, DropsFromTheLineWhatCannotComeInTimeAndAnswersTheRestInTime) {
  int dropped = 0;
  int kept = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Load load(seed);
    learn(load);
    std::map<SequenceId, Microseconds> limits;
    for (int i = 0; i < 600; ++i) {
      if (i % 4 == 0) {
        const Microseconds limit = load.pick(5'000, 80'000);
        SequenceSpec spec =
            timed(load, load.pick(20, 300), load.pick(5, 60), {.first_token = limit});
        spec.priority = 1;
        const SequenceId id = spec.id;
        if (load.add(std::move(spec)).ok()) limits[id] = limit;
      }
      // Urgent ones pass those that were promised something.
      if (i % 40 < 3) {
        ASSERT_TRUE(load.add(load.request("", 1.0, load.pick(100, 900), 30)).ok());
      }
      load.step();
    }
    while (!load.scheduler().idle()) load.step();
    for (const auto& [id, limit] : limits) {
      const Served& served = load.served[id];
      if (served.finish == Finish::kLate) {
        ++dropped;
        EXPECT_EQ(served.output_count, 0);
        continue;
      }
      ++kept;
      EXPECT_EQ(served.finish, Finish::kLength);
      // Prompts that share its last step may make it longer than foreseen, and nothing else.
      EXPECT_LE(*served.first_token_at - served.added_at,
                limit + Load::kStepTime + 512 * Load::kTokenTime);
    }
  }
  EXPECT_GT(dropped, 10);
  EXPECT_GT(kept, 60);
}

TEST(Deadline, OfAWaitingRequestIsToldAtTheNextStep) {
  Load load;
  learn(load);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(load.add(load.request("", 1.0, 20, 500)).ok());
  load.step();
  // It is promised the place of somebody who does not leave.
  SequenceSpec spec = timed(load, 20, 10, {.first_token = 700'000});
  const SequenceId id = spec.id;
  ASSERT_TRUE(load.add(std::move(spec)).ok());
  for (int i = 0; i < 20; ++i) {
    SequenceSpec urgent = load.request("", 1.0, 20, 500);
    urgent.priority = -1;
    ASSERT_TRUE(load.add(std::move(urgent)).ok());
  }
  while (!load.served[id].ended_at) load.step();
  EXPECT_EQ(load.served[id].finish, Finish::kLate);
  EXPECT_NEAR(static_cast<double>(*load.served[id].ended_at - load.served[id].added_at), 700'000,
              2'500);
  EXPECT_GT(load.served[id].retry_after, 0);
}

TEST(Deadline, EndsARunningRequestWhereItIs) {
  Load load;
  SequenceSpec spec = timed(load, 20, 500, {.total = 50'000});
  const SequenceId id = spec.id;
  ASSERT_TRUE(load.add(std::move(spec)).ok());
  while (!load.scheduler().idle()) load.step();
  EXPECT_EQ(load.served[id].finish, Finish::kTimeout);
  EXPECT_NEAR(load.served[id].output_count, 49, 2);
  EXPECT_EQ(load.scheduler().stats().late_count, 1U);
  EXPECT_EQ(load.scheduler().stats().free_block_count, 4096);
}

TEST(Deadline, EndsAWaitingRequestWhoseTimeIsOver) {
  Load load;
  load.limits.sequences_running_max = 1;
  ASSERT_TRUE(load.add(load.request("", 1.0, 20, 500)).ok());
  load.step();
  SequenceSpec spec = load.request("", 1.0, 20, 5);
  spec.deadlines.total = 900'000;
  spec.priority = 5;
  const SequenceId id = spec.id;
  ASSERT_TRUE(load.add(std::move(spec)).ok());
  ASSERT_TRUE(load.add(load.request("", 1.0, 20, 900)).ok());
  while (!load.served[id].ended_at) load.step();
  EXPECT_EQ(load.served[id].finish, Finish::kTimeout);
  EXPECT_EQ(load.served[id].output_count, 0);
}

TEST(Deadline, PromptsLeaveReadersTheirPace) {
  Load load;
  learn(load);
  ASSERT_TRUE(load.add(timed(load, 20, 200, {.per_token = 3'000})).ok());
  load.step();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(load.add(load.request("", 1.0, 4000, 10)).ok());
  for (int i = 0; i < 50; ++i) {
    const Microseconds before = load.now;
    load.step();
    EXPECT_LE(load.now - before, 3'100);
  }
}

TEST(Deadline, ForAPaceThatReadersLeaveNoTimeForIsRefused) {
  Load load;
  load.limits.sequences_running_max = 256;
  learn(load);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(load.add(load.request("", 1.0, 5, 100)).ok());
  for (int i = 0; i < 3; ++i) load.step();
  // A step of 100 readers takes 2 ms.
  EXPECT_TRUE(load.add(timed(load, 5, 10, {.per_token = 2'200})).ok());
  EXPECT_EQ(load.add(timed(load, 5, 10, {.per_token = 1'500})).code(), StatusCode::kUnavailable);
  EXPECT_EQ(load.scheduler().refusal().code, kCodeDeadlineUnreachable);
  const auto expected = static_cast<double>(load.scheduler().refusal().retry_after);
  const Microseconds begin = load.now;
  while (!load.add(timed(load, 5, 10, {.per_token = 1'500})).ok()) load.step();
  EXPECT_NEAR(static_cast<double>(load.now - begin), expected, 0.5 * expected);
}

// The line is full: how long until it has room.
TEST(RetryAfter, OfAFullLineComesTrueWithinAFactorOfTwo) {
  int count = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Load load(seed);
    load.limits.sequences_waiting_max = load.pick(4, 40);
    load.limits.sequences_running_max = load.pick(2, 12);
    if (seed % 3 == 0) load.limits.block_counts = {load.pick(80, 200)};
    if (seed % 2 == 0) load.limits.decode_slowdown_max = 2.0;
    const int prompt_max = load.pick(20, 1000);
    const int output_max = load.pick(20, 400);
    const auto next = [&] {
      return load.request("", 1.0, load.pick(10, prompt_max), load.pick(10, output_max));
    };
    for (int round = 0; round < 10; ++round) {
      while (load.add(next()).ok()) continue;
      for (int i = load.pick(0, 40); i > 0; --i) {
        load.step();
        while (load.add(next()).ok()) continue;
      }
      const auto expected = static_cast<double>(load.scheduler().refusal().retry_after);
      const Microseconds begin = load.now;
      const double longest = Load::kStepTime + 512 * Load::kTokenTime;
      SequenceSpec again = next();
      do load.step();
      while (!load.add(again).ok());
      if (round == 0) continue;  // little was known then
      ++count;
      // Room shows when the step of the admission has been planned: up to one step later.
      const auto actual = static_cast<double>(load.now - begin);
      EXPECT_LE(expected, 2.0 * actual) << "seed " << seed << " round " << round;
      EXPECT_LE(actual, 2.0 * expected + longest + 1.0) << "seed " << seed << " round " << round;
    }
  }
  EXPECT_GT(count, 200);
}

// With ends that nobody knows beforehand the mean of the past has to do.
TEST(RetryAfter, LearnsHowLongOutputsAre) {
  Load load;
  load.limits.sequences_running_max = 4;
  load.limits.sequences_waiting_max = 4;
  load.natural_length = 50;
  const auto add = [&] {
    SequenceSpec spec = load.request("", 1.0, 30, 4000);
    spec.ignore_end_tokens = false;
    spec.end_tokens = {Load::kEnd};
    return load.add(std::move(spec));
  };
  for (int i = 0; i < 200; ++i) {
    while (add().ok()) continue;
    load.step();
  }
  // All four run in step and end together, a while from now.
  const auto expected = static_cast<double>(load.scheduler().refusal().retry_after);
  const Microseconds begin = load.now;
  do load.step();
  while (!add().ok());
  const auto actual = static_cast<double>(load.now - begin);
  EXPECT_LE(expected, 2.0 * actual);
  EXPECT_LE(actual, 2.0 * expected + 2.0 * Load::kStepTime);
}

}  // namespace
}  // namespace kun
