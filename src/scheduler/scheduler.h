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
#include "plan/draft_wish.h"
#include "plan/sampling_batch.h"
#include "plan/step_result.h"

namespace kun {

using Microseconds = std::int64_t;

struct SchedulerLimits {
  int tokens_per_step_max = 2048;  // upper end of the adaptive budget
  int tokens_per_step_min = 64;    // lower end
  // How long a step may take in which prompts join running readers; the budget adapts to it.
  Microseconds step_time_target = 0;  // 0: decode_slowdown_max decides
  double decode_slowdown_max = 0.0;   // times a step without prompts; 0: always tokens_per_step_max
  int sequences_running_max = 256;
  int sequences_waiting_max = 1024;
  int context_length_max = 4096;
  std::vector<int> block_counts;  // [KV group]: blocks in the pool
  bool prefix_caching = true;
  std::uint64_t label_key[2] = {0, 0};  // keys the prefix labels; random in production

  // Drafts that a decoding sequence may have in a step; 0: no speculation.
  int draft_count_max = 0;
  int draft_sequences_max = 0;  // no drafts while more than this many are decoding; 0: any number
  bool adaptive_drafts = true;  // as many as pay; else always draft_count_max
};

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
  int priority = 0;               // lower runs earlier
  std::string cache_salt;
  std::shared_ptr<const TokenConstraint> constraint;  // each choice gets a clone; null: none
};

class Scheduler {
 public:
  Scheduler(const SchedulerLimits& limits, const KvLayout& layout);
  ~Scheduler();

  // kInvalidArgument: could never fit. kResourceExhausted: the waiting line is full. The output is
  // cut (kLength) where context or cache end. Requires: no sequence that has not ended has this id.
  Status add(SequenceSpec spec, Microseconds now);

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
    kNoToken,  // constraint and parameters together leave no token; Progress::status may say more
    kFailed,
  };

  struct Progress {
    SequenceId sequence = 0;
    std::uint32_t choice = 0;
    std::vector<SampledToken> tokens;  // new outputs; empty when stop() ended it
    // How likely the next tokens of the prompt were, from its second on; of the first choice only.
    std::vector<SampledToken> prompt_scores;
    Finish finish = Finish::kNone;
    int prompt_count = 0;
    int cached_count = 0;  // prompt tokens taken from the prefix cache at first admission
    int output_count = 0;
    Status status;                // of the constraint, when it broke
    Microseconds queue_time = 0;  // from add() to the plan of its first token
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
  };
  Stats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kun
