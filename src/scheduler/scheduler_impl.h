// The parts of Scheduler. Private to its .cc files: scheduler.cc keeps the books of requests,
// scheduler_drafts.cc asks for drafts, scheduler_plan.cc composes steps, scheduler_apply.cc takes
// in what they computed, scheduler_beams.cc goes on with beams, scheduler_victims.cc says who gives
// way to whom, and scheduler_deadlines.cc who cannot be served in time.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "scheduler/scheduler_state.h"

namespace kun {

class Scheduler::Impl : private SchedulerState {
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
  bool idle() const;
  const Refusal& refusal() const { return refusal_; }
  Microseconds admission_time();
  Stats stats() const;

 private:
  // scheduler.cc
  std::vector<BlockTable> empty_tables();
  SequencePtr make_sequence(Request& request);
  void destroy(SequencePtr sequence);
  template <class Visit>
  void visit_sequences(SequenceId id, const Visit& visit);
  void sweep();

  // scheduler_plan.cc
  void start_plan(Microseconds now);
  void compose();
  int prompt_budget(int decode_count, int draft_count) const;
  bool waiting_is_next(std::size_t next);
  bool advance(std::size_t next);
  bool admit(std::size_t next);
  bool is_being_computed(const Sequence& sequence, std::span<const Token> reusable) const;
  bool make_room(Sequence& sequence, std::size_t next);
  bool reserve(Sequence& sequence, int token_count, std::size_t first_victim);
  bool try_reserve(Sequence& sequence, int token_count, int spare);
  bool must_copy(const Sequence& sequence, std::size_t group) const;
  void copy_partial_block(Sequence& sequence, std::size_t group);
  void charge_prompt(Sequence& sequence, int end);
  void record_admission(Sequence& sequence);
  int take_proposal(Sequence& sequence);
  void add_slice(Sequence& sequence, int token_count);
  void add_scores(Sequence& sequence, PlanSlice& slice);
  void add_sampling_rows(const Sequence& sequence, PlanSlice& slice);
  int step_room(const Sequence& sequence) const;
  static void add_pooled_rows(const Sequence& sequence, PlanSlice& slice);
  int missing_block_count(const Sequence& sequence, std::size_t group, int token_count) const;
  int prompt_share(const Sequence& sequence) const;

  // scheduler_victims.cc
  void order_running();
  void collect_victims(const Sequence& candidate, std::size_t next);
  bool might_fit(const Sequence& candidate, int spare);
  int released_block_count(std::span<Sequence* const> victims, std::size_t group);
  void displace(Sequence& candidate, Sequence& victim);
  void settle(Sequence& sequence);
  void preempt(std::size_t index);

  // scheduler_deadlines.cc
  Status refuse_late(const SequenceSpec& spec, PrefixChain&, Request&, Microseconds now);
  QueueForecast forecast_of(const Request& request, int prompt_left, int choice_count);
  void end_late(Microseconds now);
  bool too_late(const Sequence& sequence, Microseconds now, int decode_count) const;
  double least_time(std::int64_t token_count, int decode_count) const;
  QueueState queue_state();
  WorkItem work_of(const Sequence& sequence, const Request& request) const;
  int expected_output(const Request& request, int so_far) const;
  double pace_limit() const;
  // scheduler_beams.cc
  Status check_beams(const SequenceSpec& spec) const;
  void begin_beams(Sequence& sequence, const SequenceSpec& spec);
  void add_candidate_rows(const Sequence& sequence, PlanSlice& slice);
  void take_candidates(Sequence& sequence, std::span<const SampledToken> tokens);
  void finish_rounds();
  void next_round(Request& request);
  void continue_beams(Request& request, const std::vector<Sequence*>& beams,
                      std::vector<BeamSearch::Continuation> next);
  void tell_hypotheses(Request& request);
  void end_beams(Request& request, Finish finish, const Status& status);
  void leave_beams(Request& request);
  void park(SequencePtr sequence);
  bool park_answered();

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
  void take_pooled(Sequence& sequence, const PlanSlice& slice, const SliceResult& result);
  void take_tokens(Sequence& sequence, std::span<const SampledToken> tokens);
  void take_output(Sequence& sequence, std::span<const SampledToken> tokens);
  void release_passed_blocks(Sequence& sequence);
  void record_drafts(Sequence& sequence, int drafted, int accepted);
  SequencePtr fork(const Sequence& sequence, const SequenceChoice& choice);
  Finish finish_after(Sequence& sequence, Token token, Status& broken) const;
  Progress progress_of(const Sequence& sequence, std::uint32_t choice, Finish finish) const;
  static Progress progress_of(const Request& request, std::uint32_t choice, Finish finish);
  void remove_ended();
};

}  // namespace kun
