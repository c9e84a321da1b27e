// The parts of Scheduler. Private to its .cc files: scheduler.cc keeps the books of requests,
// scheduler_drafts.cc asks for drafts, scheduler_plan.cc composes steps, scheduler_apply.cc takes
// in what they computed.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "kv/prefix_cache.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"
#include "scheduler/speculation.h"
#include "scheduler/step_cost.h"

namespace kun {

class Scheduler::Impl {
 public:
  Impl(const SchedulerLimits& limits, const KvLayout& layout);

  Status add(SequenceSpec spec, Microseconds now);
  void cancel(SequenceId id);
  void stop(SequenceId id, std::uint32_t choice, int kept_count);
  const std::vector<DraftWish>& draft_wishes();
  void offer_drafts(std::span<const std::vector<Token>> drafts, Microseconds elapsed);
  const BatchPlan& plan(Microseconds now);
  SamplingBatch& sampling() { return sampling_; }
  std::vector<Progress> apply(const StepResult& result, Microseconds now);
  bool idle() const { return running_.empty() && waiting_.empty() && progress_.empty(); }
  Stats stats() const;

 private:
  using SequencePtr = std::unique_ptr<Sequence>;

  // What is left of a step while it is composed.
  struct Budget {
    int total = 0;         // tokens of any kind
    int prompt = 0;        // tokens of prompts, resumed sequences included
    int decode_count = 0;  // one token each is set aside for decoding sequences still to come
    int kept = 0;          // tokens that drafts leave to prompts
    int slots = 0;         // choices that may still start to run
  };

  // scheduler.cc
  std::vector<BlockTable> empty_tables();
  SequencePtr make_sequence(Request& request);
  void destroy(SequencePtr sequence);
  template <class Visit>
  void visit_sequences(SequenceId id, const Visit& visit);
  void sweep();

  // scheduler_plan.cc
  void start_plan(Microseconds now);
  int prompt_budget(int decode_count, int draft_count) const;
  bool waiting_is_next(std::size_t next) const;
  bool advance(std::size_t next);
  bool admit(std::size_t next);
  bool might_fit(const Sequence& sequence, std::size_t first_victim) const;
  bool reserve(Sequence& sequence, int token_count, int spare, std::size_t first_victim);
  bool try_reserve(Sequence& sequence, int token_count, int spare);
  bool must_copy(const Sequence& sequence, std::size_t group) const;
  void copy_partial_block(Sequence& sequence, std::size_t group);
  void preempt_last();
  void record_admission(Sequence& sequence);
  int take_proposal(Sequence& sequence);
  void add_slice(Sequence& sequence, int token_count);
  void add_scores(Sequence& sequence, PlanSlice& slice);
  void add_sampling_rows(const Sequence& sequence, PlanSlice& slice);
  int missing_block_count(const Sequence& sequence, std::size_t group, int token_count) const;
  int prompt_share(const Sequence& sequence) const;

  // scheduler_drafts.cc
  void forget_wishes();
  int draft_room(const Sequence& sequence) const;

  // scheduler_apply.cc
  bool usable(const StepResult& result) const;
  void fail_step();
  void apply_slice(Sequence& sequence, const PlanSlice& slice, const SliceResult& result,
                   std::size_t first_row);
  void end(Sequence& sequence, Finish finish, const Status& status = {});
  void take_scores(Sequence& sequence, const SliceResult& result, int count);
  void take_tokens(Sequence& sequence, std::span<const SampledToken> tokens);
  void take_output(Sequence& sequence, std::span<const SampledToken> tokens);
  void record_drafts(Sequence& sequence, int drafted, int accepted);
  SequencePtr fork(const Sequence& sequence, const SequenceChoice& choice);
  Finish finish_after(Sequence& sequence, Token token, Status& broken) const;
  Progress progress_of(const Sequence& sequence, std::uint32_t choice, Finish finish) const;
  void remove_ended();

  SchedulerLimits limits_;
  std::deque<KvBlockPool> pools_;  // [KV group]
  PrefixCache prefixes_;
  std::int64_t capacity_ = 0;  // tokens of the longest sequence, its last output included
  StepCost cost_;
  Speculation speculation_;

  std::unordered_map<SequenceId, Request> requests_;  // entries never move
  std::map<SequenceKey, SequencePtr> waiting_;
  std::vector<SequencePtr> running_;  // ordered by key
  std::uint64_t arrival_count_ = 0;

  bool in_flight_ = false;
  Microseconds planned_at_ = 0;
  BatchPlan plan_;
  SamplingBatch sampling_;
  Budget budget_;
  std::vector<Sequence*> planned_;       // [slice]
  std::vector<PlanSlice> spare_slices_;  // of earlier steps: their vectors are used again
  std::vector<SequencePtr> forks_;
  std::vector<Progress> progress_;  // for the next apply() to tell
  std::vector<DraftWish> wishes_;
  std::vector<Sequence*> wishing_;   // [wish]
  std::vector<Sequence*> decoding_;  // of draft_wishes(), as are the next two
  std::vector<Acceptance*> acceptances_;
  std::vector<int> draft_counts_;
  Stats stats_;
};

}  // namespace kun
