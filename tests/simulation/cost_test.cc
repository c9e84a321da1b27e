// What a step costs the engine thread. The bound is loose, for debug builds and busy machines; the
// figure is printed, and docs/scheduling.md has one from a quiet one.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "scheduler/scheduler.h"

namespace kun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSequenceCount = 256;
constexpr int kPromptCount = 512;
constexpr int kStepCount = 400;
constexpr double kBoundUs = 3000.0;

TEST(SchedulerCost, OfAStepWith256DecodingSequencesIsSmall) {
  SchedulerLimits limits;
  limits.tokens_per_step_max = kSequenceCount * kPromptCount;
  limits.sequences_running_max = kSequenceCount;
  limits.block_counts = {kSequenceCount * 32};
  KvLayout layout;
  layout.groups.resize(1);
  layout.groups[0].tokens_per_block = 32;
  Scheduler scheduler(limits, layout);
  for (int i = 0; i < kSequenceCount; ++i) {
    SequenceSpec spec;
    spec.id = static_cast<SequenceId>(i + 1);
    spec.prompt.assign(kPromptCount, i);
    spec.output_count_max = kStepCount + 2;
    ASSERT_TRUE(scheduler.add(std::move(spec), 0).ok());
  }
  std::vector<double> times;
  StepResult result;
  for (int step = 0; step <= kStepCount; ++step) {
    const auto begin = Clock::now();
    const BatchPlan& plan = scheduler.plan(step);
    const auto planned = Clock::now();
    ASSERT_EQ(plan.slices.size(), static_cast<std::size_t>(kSequenceCount));
    result.step = plan.step;
    result.slices.resize(plan.slices.size());
    for (SliceResult& slice : result.slices) slice.tokens.resize(1);
    const auto computed = Clock::now();
    const std::size_t told = scheduler.apply(result, step).size();
    const auto end = Clock::now();
    ASSERT_EQ(told, static_cast<std::size_t>(kSequenceCount));
    if (step == 0) continue;  // the prompts
    times.push_back(
        std::chrono::duration<double, std::micro>(planned - begin + end - computed).count());
  }
  std::ranges::sort(times);
  std::printf("plan and apply, %d decoding sequences: median %.0f us, 99%% %.0f us\n",
              kSequenceCount, times[times.size() / 2], times[times.size() * 99 / 100]);
  EXPECT_LT(times[times.size() / 2], kBoundUs);
}

}  // namespace
}  // namespace kun
