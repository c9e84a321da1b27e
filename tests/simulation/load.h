// A scheduler under a load that a test describes, on a worker whose steps take a known time. It
// counts what every request and every tenant had, and when.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "scheduler/scheduler.h"

namespace kun {

struct Served {
  Microseconds added_at = 0;
  std::uint64_t added_before_step = 0;      // the first step that was planned afterwards
  std::optional<std::uint64_t> first_step;  // that computed any of it
  std::optional<Microseconds> first_token_at;
  std::optional<Microseconds> ended_at;
  Scheduler::Finish finish = Scheduler::Finish::kNone;
  Microseconds retry_after = 0;
  int output_count = 0;
};

class Load {
 public:
  static constexpr Microseconds kStepTime = 1000;
  static constexpr Microseconds kTokenTime = 10;
  static constexpr Token kEnd = 40'000;

  explicit Load(std::uint64_t seed = 1) : random_(seed) {
    limits.block_counts = {4096};
    limits.tokens_per_step_max = 512;
    limits.sequences_running_max = 8;
    limits.sequences_waiting_max = 1000;
    limits.context_length_max = 16000;
    layout.groups.resize(1);
    layout.groups[0].tokens_per_block = 16;
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // A request whose prompt is like no other, and whose output runs to its end.
  SequenceSpec request(const std::string& tenant, double weight, int prompt, int output) {
    SequenceSpec spec;
    spec.id = ++last_id_;
    spec.tenant = tenant;
    spec.tenant_weight = weight;
    for (int i = 0; i < prompt; ++i) spec.prompt.push_back(pick(0, 30'000));
    spec.output_count_max = output;
    spec.ignore_end_tokens = true;
    return spec;
  }

  Status add(SequenceSpec spec) {
    const SequenceId id = spec.id;
    Status status = scheduler().add(std::move(spec), now);
    if (status.ok()) {
      served[id].added_at = now;
      served[id].added_before_step = step_count + (in_step_ ? 2 : 1);
    }
    return status;
  }

  Scheduler& scheduler() {
    if (scheduler_ == nullptr) scheduler_ = std::make_unique<Scheduler>(limits, layout);
    return *scheduler_;
  }

  // `meanwhile` happens while the step runs.
  void step(const std::function<void()>& meanwhile = {}) {
    const BatchPlan& plan = scheduler().plan(now);
    StepResult result{.step = plan.step, .status = {}, .slices = {}};
    int token_count = 0;
    for (const PlanSlice& slice : plan.slices) {
      token_count += static_cast<int>(slice.tokens.size());
      if (!served[slice.sequence].first_step) served[slice.sequence].first_step = step_count + 1;
      SliceResult mine{.sequence = slice.sequence, .tokens = {}, .corrupted = false};
      if (slice.pooling == Pooling::kNone) {
        mine.tokens.resize(slice.wanted.size());
      } else if (!slice.wanted.empty()) {
        mine.pooled.resize(1);
      }
      const bool over = served[slice.sequence].output_count + 1 == natural_length;
      for (SampledToken& token : mine.tokens) token.token = over ? kEnd : pick(0, 30'000);
      result.slices.push_back(mine);
    }
    in_step_ = true;
    if (meanwhile) meanwhile();
    in_step_ = false;
    computed_count += token_count;
    slice_count = std::ssize(plan.slices);
    ++step_count;
    now += token_count > 0 ? kStepTime + kTokenTime * token_count : 1;
    for (const Scheduler::Progress& progress : scheduler().apply(result, now)) take(progress);
  }

  TenantStats tenant(const std::string& name) {
    for (const TenantStats& stats : scheduler().stats().tenants) {
      if (stats.name == name) return stats;
    }
    return {};
  }
  double tokens(const std::string& name) {
    const TenantStats stats = tenant(name);
    return static_cast<double>(stats.prompt_token_count + stats.output_token_count);
  }

  SchedulerLimits limits;
  KvLayout layout;
  int natural_length = 0;  // > 0: the outputs after which the worker says kEnd
  Microseconds now = 0;
  std::uint64_t step_count = 0;
  std::int64_t computed_count = 0;
  std::ptrdiff_t slice_count = 0;  // of the last step
  std::map<SequenceId, Served> served;

 private:
  void take(const Scheduler::Progress& progress) {
    Served& mine = served[progress.sequence];
    if (!progress.tokens.empty() && !mine.first_token_at) mine.first_token_at = now;
    mine.output_count = progress.output_count;
    mine.retry_after = progress.retry_after;
    if (progress.finish == Scheduler::Finish::kNone) return;
    mine.ended_at = now;
    mine.finish = progress.finish;
  }

  std::mt19937_64 random_;
  std::unique_ptr<Scheduler> scheduler_;
  SequenceId last_id_ = 0;
  bool in_step_ = false;
};

}  // namespace kun
