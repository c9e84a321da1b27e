// Beam search as the scheduler runs it. A beam is a sequence; when the last beam of a round has its
// candidates, those that go on become forks of their parents, which share every block with them,
// and the parents end. A beam that waits for the others needs no blocks: should they be short, it
// gives them up, and what continues it computes them again.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "scheduler/scheduler_impl.h"

namespace kun {

Status Scheduler::Impl::check_beams(const SequenceSpec& spec) const {
  const int width = spec.beams.width;
  if (width == 0) return {};
  CHECK(spec.pooling == Pooling::kNone && spec.constraint == nullptr);
  if (width >= spec.choice_count && width <= limits_.sequences_running_max) return {};
  return invalid_argument(fmt::format(
      "a beam search with {} beams was asked for {} texts, and {} beams can run at once", width,
      spec.choice_count, limits_.sequences_running_max));
}

// The prompt is the one beam of the first round, with the places of all of them.
void Scheduler::Impl::begin_beams(Sequence& sequence, const SequenceSpec& spec) {
  Request& request = *sequence.request;
  const int output_count_max = request.token_count_max - request.prompt_count;
  request.beams = std::make_shared<BeamRound>(
      BeamSearch(spec.beams, request.end_tokens, output_count_max), spec.choice_count);
  for (int i = spec.choice_count; i < spec.beams.width; ++i) {
    sequence.choices.push_back({.index = static_cast<std::uint32_t>(i), .kept_count = -1});
  }
  sequence.beam = std::make_unique<Beam>();
  if (spec.watch != nullptr) sequence.beam->watch = spec.watch->clone();
}

// A row for the candidates, and one for what the client sees beside the chosen ones.
void Scheduler::Impl::add_candidate_rows(const Sequence& sequence, PlanSlice& slice) {
  const Request& request = *sequence.request;
  const auto last = static_cast<std::int32_t>(slice.tokens.size()) - 1;
  SamplingRow row;
  row.params = &request.sampling;
  row.history = sequence.tokens;
  row.prompt_count = request.prompt_count;
  row.candidate_count = request.beams->search.candidate_count();
  slice.wanted.push_back(last);
  sampling_.rows.push_back(row);
  if (request.sampling.logprob_count <= 0) return;
  row.candidate_count = 0;
  row.given = sequence.tokens.back();  // any: the likeliest are wanted
  row.given_top_count = request.sampling.logprob_count;
  slice.wanted.push_back(last);
  sampling_.rows.push_back(row);
}

// `tokens` are of the rows above; none when no token is possible, which is the end of the beam.
void Scheduler::Impl::take_candidates(Sequence& sequence, std::span<const SampledToken> tokens) {
  Beam& beam = *sequence.beam;
  beam.answered = true;
  Tenant& tenant = *sequence.request->tenant;
  ++tenant.output_token_count;
  TenantBook::charge(tenant, 1.0);
  if (!tokens.empty()) beam.candidates = tokens[0].top;
  if (tokens.size() > 1) beam.shown = tokens[1].top;
  if (--sequence.request->beams->awaited_count == 0) rounds_.push_back(sequence.request);
}

void Scheduler::Impl::finish_rounds() {
  for (Request* request : std::exchange(rounds_, {})) {
    if (!request->beams->over) next_round(*request);
  }
}

void Scheduler::Impl::next_round(Request& request) {
  std::vector<Sequence*> beams;
  for (const SequencePtr& sequence : running_) {
    if (sequence->request == &request && !sequence->ended) beams.push_back(sequence.get());
  }
  for (const SequencePtr& sequence : request.beams->parked) beams.push_back(sequence.get());
  std::ranges::sort(beams, {}, &Sequence::key);
  std::vector<const Beam*> answered;
  for (const Sequence* sequence : beams) answered.push_back(sequence->beam.get());
  std::vector<BeamSearch::Continuation> next = request.beams->search.select(answered);
  if (next.empty()) return tell_hypotheses(request);
  continue_beams(request, beams, std::move(next));
}

void Scheduler::Impl::continue_beams(Request& request, const std::vector<Sequence*>& beams,
                                     std::vector<BeamSearch::Continuation> next) {
  const int width = request.beams->search.width();
  const int count = static_cast<int>(next.size());
  for (int i = 0; i < count; ++i) {
    BeamSearch::Continuation& one = next[static_cast<std::size_t>(i)];
    const Sequence& parent = *beams[one.parent];
    SequencePtr beam = fork(parent, {.index = static_cast<std::uint32_t>(i), .kept_count = -1});
    // Places that no beam has stay with the first.
    for (int free = count; i == 0 && free < width; ++free) {
      beam->choices.push_back({.index = static_cast<std::uint32_t>(free), .kept_count = -1});
    }
    beam->tokens.push_back(one.beam.output.back().token);
    beam->beam = std::make_unique<Beam>(std::move(one.beam));
    const bool has_blocks = beam->computed_count > 0;
    if (has_blocks) {
      forks_.push_back(std::move(beam));
    } else {
      tenants_.put(std::move(beam));
    }
  }
  for (Sequence* parent : beams) parent->ended = true;
  leave_beams(request);
  request.beams->awaited_count = count;
}

// The best hypotheses are the choices. There may be fewer than were asked for: where few tokens are
// possible, so are few texts.
void Scheduler::Impl::tell_hypotheses(Request& request) {
  std::vector<Hypothesis> best = request.beams->search.take_best();
  const auto wanted = static_cast<std::size_t>(request.beams->choice_count);
  const Status missing = invalid_argument(
      fmt::format("beam search found {} texts, and {} were asked for", best.size(), wanted));
  end_beams(request, Finish::kNoToken, missing);
  for (std::size_t i = 0; i < std::min(best.size(), wanted); ++i) {
    Progress& progress = progress_[progress_.size() - wanted + i];
    progress.status = {};
    progress.output_count = static_cast<int>(best[i].tokens.size());
    progress.tokens = std::move(best[i].tokens);
    switch (best[i].end) {
      case Hypothesis::End::kEndToken: progress.finish = Finish::kEndToken; break;
      case Hypothesis::End::kWatch: progress.finish = Finish::kStopped; break;
      case Hypothesis::End::kLength: progress.finish = Finish::kLength; break;
    }
  }
}

// Ends the request, and tells so of each of its choices. sweep() takes its sequences away.
void Scheduler::Impl::end_beams(Request& request, Finish finish, const Status& status) {
  if (std::exchange(request.beams->over, true)) return;
  for (const SequencePtr& sequence : running_) {
    if (sequence->request == &request) sequence->ended = true;
  }
  for (const auto& [key, sequence] : request.tenant->waiting) {
    if (sequence->request == &request) sequence->ended = true;
  }
  for (int i = 0; i < request.beams->choice_count; ++i) {
    progress_.push_back(progress_of(request, static_cast<std::uint32_t>(i), finish));
    progress_.back().status = status;
  }
  leave_beams(request);
}

// Lets go of beams that are in no line. Requires: the request has sequences that are.
void Scheduler::Impl::leave_beams(Request& request) {
  for (SequencePtr& sequence : std::exchange(request.beams->parked, {})) {
    destroy(std::move(sequence));
  }
}

void Scheduler::Impl::park(SequencePtr sequence) {
  sequence->rewind();
  Request& request = *sequence->request;
  request.beams->parked.push_back(std::move(sequence));
}

bool Scheduler::Impl::park_answered() {
  bool parked = false;
  for (SequencePtr& sequence : running_) {
    if (!sequence->waits_for_beams()) continue;
    park(std::move(sequence));
    parked = true;
  }
  std::erase(running_, nullptr);
  return parked;
}

}  // namespace kun
