// What a scheduler keeps in mind. Private to its .cc files, as is Scheduler::Impl, which is this
// and what it does with it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kv/prefix_cache.h"
#include "scheduler/queue_estimate.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "scheduler/speculation.h"
#include "scheduler/step_cost.h"
#include "scheduler/tenants.h"

namespace kun {

struct SchedulerState {
  using SequencePtr = std::unique_ptr<Sequence>;

  SchedulerState(const SchedulerLimits& limits, const KvLayout& layout);

  SchedulerLimits limits_;
  KvLayout layout_;
  std::deque<KvBlockPool> pools_;  // [KV group]
  PrefixCache prefixes_;
  std::int64_t capacity_ = 0;    // tokens of the longest sequence, its last output included
  std::int64_t pooled_max_ = 0;  // of the longest prompt that is pooled
  StepCost cost_;
  Speculation speculation_;

  std::unordered_map<SequenceId, Request> requests_;  // entries never move
  TenantBook tenants_;                                // and the waiting line
  std::vector<SequencePtr> running_;                  // ordered by tenant, then by key
  int timed_count_ = 0;                               // requests that have deadlines
  int forecasts_left_ = kForecastsPerStep;
  std::optional<Microseconds> admission_time_;  // as of this step
  OutputLength output_length_;
  Refusal refusal_;
  std::uint64_t arrival_count_ = 0;

  bool in_flight_ = false;
  Microseconds planned_at_ = 0;
  BatchPlan plan_;
  SamplingBatch sampling_;
  StepBudget budget_;
  std::vector<Sequence*> planned_;       // [slice]
  std::vector<Sequence*> victims_;       // of the sequence being admitted, in order of leaving
  std::vector<int> released_;            // [block]: times that victims hold it
  std::vector<PlanSlice> spare_slices_;  // of earlier steps: their vectors are used again
  std::vector<SequencePtr> forks_;
  std::vector<Request*> rounds_;               // whose beams are all answered
  std::vector<Scheduler::Progress> progress_;  // for the next apply() to tell
  std::vector<DraftWish> wishes_;
  std::vector<Sequence*> wishing_;   // [wish]
  std::vector<Sequence*> decoding_;  // of draft_wishes(), as are the next two
  std::vector<Acceptance*> acceptances_;
  std::vector<int> draft_counts_;
  Scheduler::Stats stats_;
};

}  // namespace kun
