// Scheduler decides what runs in the next step. It is pure bookkeeping: no thread, no clock, no
// device; the same calls always give the same plans, so its tests can be simulations. Time enters
// as an argument. The engine thread owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_layout.h"
#include "plan/batch_plan.h"
#include "plan/beam_params.h"
#include "plan/draft_wish.h"
#include "plan/refusal.h"
#include "plan/sampling_batch.h"
#include "plan/step_result.h"
#include "plan/tenant_stats.h"
#include "scheduler/scheduler_limits.h"

namespace kun {

// One request: a prompt and `choice_count` continuations of it.
struct SequenceSpec {
  SequenceId id = 0;  // names the request; its choices are told apart by Progress::choice
  std::vector<Token> prompt;
  int output_count_max = 16;
  SamplingParams sampling;
  std::vector<Token> end_tokens;
  bool ignore_end_tokens = false;
  int choice_count = 1;
  int prompt_logprob_count = -1;  // >= 0: Progress::prompt_scores are wanted, with so many others
  int priority = 0;               // among the tenant's own; lower runs earlier
  std::string tenant;             // who pays; requests without a name are one tenant's
  double tenant_weight = 1.0;     // share of the service, against other tenants' weights
  Deadlines deadlines;
  std::string cache_salt;
  std::shared_ptr<const TokenConstraint> constraint;  // each choice gets a clone; null: none
  Pooling pooling = Pooling::kNone;  // not kNone: one choice, which ends with its prompt
  BeamParams beams;  // with a width: the choices are the best hypotheses, told when all is over
  std::shared_ptr<const OutputWatch> watch;  // may end a hypothesis; null: nothing does
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, const KvLayout& layout);
  ~Scheduler();

  // kInvalidArgument: could never fit. kResourceExhausted: the waiting line is full. kUnavailable:
  // its deadlines cannot be kept; refusal() says more. The output is cut (kLength) where context or
  // cache end. Requires: no sequence that has not ended has this id.
  Status add(SequenceSpec spec, Microseconds now);

  // Why the last add() was refused, and when the same request would be taken.
  const Refusal& refusal() const;

  // How long until somebody who waits begins to run, which makes room in a full line.
  Microseconds admission_time();

  // Ends all choices of `id` without further progress; unknown ids are ignored.
  void cancel(SequenceId id);

  // Ends one choice as stopped by its reader after its first `kept_count` outputs.
  void stop(SequenceId id, std::uint32_t choice, int kept_count);

  // Which sequences want drafts for the next step, and how many; empty when drafts do not pay.
  // Requires: the last plan was applied. Valid until the next call that changes anything.
  const std::vector<DraftWish>& draft_wishes();

  // Drafts for the wishes, in their order, each at most as many as were wanted. plan() takes them,
  // or drops what finds no room. `elapsed`: what it took to make them. Requires: nothing was called
  // since draft_wishes().
  void offer_drafts(std::span<const std::vector<Token>> drafts, Microseconds elapsed);

  // The next step. Empty only when no sequence is left. Requires: the last plan was applied; an
  // empty one need not be, but may be (with an empty result of its step) to hear of stop()s.
  const BatchPlan& plan(Microseconds now);

  // Beside the last plan; valid until apply(). The masks are the caller's to fill in.
  SamplingBatch& sampling();

  enum class Finish : std::uint8_t {
    kNone,
    kEndToken,
    kConstraintEnd,  // its constraint lets nothing follow
    kLength,
    kStopped,
    kCorrupted,
    kLate,     // it waited until its first token could not come in time any more
    kTimeout,  // its time was over; perhaps before its first token
    kNoToken,  // constraint and parameters together leave no token; Progress::status may say more
    kFailed,
    kPooled,  // all of its prompt was read
  };

  struct Progress {
    SequenceId sequence = 0;
    std::uint32_t choice = 0;
    std::vector<SampledToken> tokens;  // new outputs; empty when stop() ended it
    // How likely the next tokens of the prompt were, from its second on; of the first choice only.
    std::vector<SampledToken> prompt_scores;
    // Sum of the hidden states of further tokens of its prompt, or that of the last one.
    std::vector<double> pooled;
    Finish finish = Finish::kNone;
    int prompt_count = 0;
    int cached_count = 0;  // prompt tokens taken from the prefix cache at first admission
    int output_count = 0;
    Status status;                 // of the constraint, when it broke
    Microseconds queue_time = 0;   // from add() to the plan of its first token
    Microseconds retry_after = 0;  // kLate: when it could be kept
  };

  // Takes in what the workers computed and tells who advanced or ended. A failed step ends every
  // sequence of its plan as kFailed.
  std::vector<Progress> apply(const StepResult& result, Microseconds now);

  // Nothing runs, waits or remains to be told by apply(). add(), cancel() and stop() may be called
  // at any time, also between plan() and apply().
  bool idle() const;

  struct Stats {
    int running_count = 0;
    int waiting_count = 0;
    int free_block_count = 0;  // over all groups
    int total_block_count = 0;
    std::uint64_t prompt_token_count = 0;           // of admitted requests
    std::uint64_t computed_prompt_token_count = 0;  // again after preemption, not from the cache
    std::uint64_t prefix_query_token_count = 0;     // looked up at first admission
    std::uint64_t prefix_hit_token_count = 0;
    std::uint64_t preemption_count = 0;
    std::uint64_t draft_count = 0;  // times that drafts of a sequence were verified
    std::uint64_t draft_token_count = 0;
    std::uint64_t accepted_token_count = 0;
    std::vector<std::uint64_t> accepted_by_position;  // [place among a step's drafts]
    std::uint64_t late_count = 0;                     // ended as kLate or kTimeout
    std::vector<TenantStats> tenants;                 // that have or had something to do
  };
  Stats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kun
