// What becomes of the sequences of a step once it was computed: they advance, publish their full
// blocks, fork into their choices, or end.
#include <algorithm>

#include "scheduler/scheduler_impl.h"

namespace kun {

namespace {

// A token for every wanted row; with drafts, the leading ones that were right and one more. Pooled
// rows give one sum.
bool answers(const PlanSlice& slice, const SliceResult& result) {
  const auto count = static_cast<int>(result.tokens.size());
  const auto wanted = static_cast<int>(slice.wanted.size());
  if (slice.pooling != Pooling::kNone) return count == 0 && result.pooled.empty() == (wanted == 0);
  if (slice.draft_count == 0) return count == wanted;
  if (count < 1 || count > wanted) return false;
  const auto drafts = slice.tokens.end() - slice.draft_count;
  return std::equal(drafts, drafts + count - 1, result.tokens.begin(),
                    [](Token draft, const SampledToken& token) { return draft == token.token; });
}

}  // namespace

std::vector<Scheduler::Progress> Scheduler::Impl::apply(const StepResult& result,
                                                        Microseconds now) {
  CHECK(result.step == plan_.step);
  in_flight_ = false;
  admission_time_.reset();
  if (!usable(result)) {
    fail_step();
  } else {
    int token_count = 0;
    bool decoding_only = true;
    std::size_t row = 0;
    for (std::size_t i = 0; i < planned_.size(); ++i) {
      token_count += planned_[i]->planned_count;
      decoding_only = decoding_only && planned_[i]->decoding();
      apply_slice(*planned_[i], plan_.slices[i], result.slices[i], row);
      if (plan_.slices[i].pooling == Pooling::kNone) row += plan_.slices[i].wanted.size();
    }
    cost_.observe(token_count, now - planned_at_);
    if (decoding_only) speculation_.observe_step(token_count, now - planned_at_);
  }
  finish_rounds();
  planned_.clear();
  sampling_.rows.clear();
  sweep();
  for (SequencePtr& sequence : forks_) running_.push_back(std::move(sequence));
  forks_.clear();
  order_running();
  return std::exchange(progress_, {});
}

// A worker that answers something else than what was asked has failed the step.
bool Scheduler::Impl::usable(const StepResult& result) const {
  if (!result.status.ok() || result.slices.size() != planned_.size()) return false;
  for (std::size_t i = 0; i < planned_.size(); ++i) {
    const SliceResult& slice = result.slices[i];
    const bool ends = slice.corrupted || slice.starved;
    if (!ends && !answers(plan_.slices[i], slice)) return false;
  }
  return true;
}

void Scheduler::Impl::fail_step() {
  for (Sequence* sequence : planned_) {
    sequence->planned_count = 0;
    sequence->drop_drafts();
    end(*sequence, Finish::kFailed);
  }
}

// Tells that every choice of the sequence has ended, unless it was cancelled.
void Scheduler::Impl::end(Sequence& sequence, Finish finish, const Status& status) {
  if (sequence.beam != nullptr) return end_beams(*sequence.request, finish, status);
  if (std::exchange(sequence.ended, true)) return;
  for (const SequenceChoice& choice : sequence.choices) {
    const bool stopped = choice.kept_count >= 0;
    progress_.push_back(progress_of(sequence, choice.index, stopped ? Finish::kStopped : finish));
    if (!stopped) progress_.back().status = status;
    if (stopped) progress_.back().output_count = choice.kept_count;
  }
}

void Scheduler::Impl::apply_slice(Sequence& sequence, const PlanSlice& slice,
                                  const SliceResult& result, std::size_t first_row) {
  const int first = sequence.computed_count;
  const int drafted = sequence.draft_count;
  const int accepted =
      drafted == 0 || result.tokens.empty() ? 0 : static_cast<int>(result.tokens.size()) - 1;
  // The cache entries of wrong drafts count as never written: the next step writes over them.
  sequence.computed_count += std::exchange(sequence.planned_count, 0) - (drafted - accepted);
  const int prompt_end = std::min(sequence.computed_count, sequence.request->prompt_count);
  stats_.computed_prompt_token_count += static_cast<std::uint64_t>(std::max(prompt_end - first, 0));
  if (result.corrupted) {
    // Which of its blocks went wrong is not known, so that nobody may find any of them.
    prefixes_.forget(sequence.chain, sequence.tables);
    sequence.drop_drafts();
    end(sequence, Finish::kCorrupted);
    return;
  }
  if (limits_.prefix_caching) {
    const auto computed = static_cast<std::size_t>(sequence.computed_count);
    prefixes_.publish(std::span(sequence.tokens).first(computed), sequence.chain, sequence.tables);
  }
  if (drafted > 0) record_drafts(sequence, drafted, accepted);
  release_passed_blocks(sequence);
  if (sequence.ended) return;
  if (sequence.pools()) return take_pooled(sequence, slice, result);
  const int scoring_count = std::exchange(sequence.scoring_count, 0);
  if (result.starved && sequence.beam != nullptr) return take_candidates(sequence, {});
  if (result.starved) {
    const std::size_t row = first_row + static_cast<std::size_t>(scoring_count);
    return end(sequence, Finish::kNoToken, sampling_.rows[row].mask_status);
  }
  if (scoring_count > 0) take_scores(sequence, result, scoring_count);
  if (std::ssize(slice.wanted) > scoring_count) {
    const auto tokens = std::span(result.tokens).subspan(static_cast<std::size_t>(scoring_count));
    return sequence.beam != nullptr ? take_candidates(sequence, tokens)
                                    : take_tokens(sequence, tokens);
  }
  // Choices that were stopped before they had a token leave those that go on.
  const auto stopped = [&](const SequenceChoice& choice) {
    if (choice.kept_count < 0) return false;
    progress_.push_back(progress_of(sequence, choice.index, Finish::kStopped));
    progress_.back().output_count = choice.kept_count;
    return true;
  };
  std::vector<SequenceChoice> left;
  for (const SequenceChoice& choice : sequence.choices) {
    if (!stopped(choice)) left.push_back(choice);
  }
  if (left.empty()) {
    sequence.ended = true;
    return;
  }
  sequence.choices = std::move(left);
}

void Scheduler::Impl::take_scores(Sequence& sequence, const SliceResult& result, int count) {
  progress_.push_back(progress_of(sequence, sequence.choices.front().index, Finish::kNone));
  progress_.back().prompt_scores.assign(result.tokens.begin(), result.tokens.begin() + count);
  sequence.request->scored_count += count;
}

// What no token to come reads. Drafts cannot need it either: they come behind what is computed.
void Scheduler::Impl::release_passed_blocks(Sequence& sequence) {
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int first = layout_.groups[g].first_block_read(sequence.computed_count);
    sequence.tables[g].release_before(first);
  }
}

// Tells the sum of a part of the prompt, and the end with the last part.
void Scheduler::Impl::take_pooled(Sequence& sequence, const PlanSlice& slice,
                                  const SliceResult& result) {
  if (sequence.choices.front().kept_count >= 0) return end(sequence, Finish::kStopped);
  Request& request = *sequence.request;
  if (request.pooling == Pooling::kMean) {
    request.pooled_count += static_cast<int>(slice.wanted.size());
  }
  const bool over = sequence.computed_count == request.prompt_count;
  if (slice.wanted.empty()) return;
  CHECK(!over || request.pooling == Pooling::kLast || request.pooled_count == request.prompt_count);
  const Finish finish = over ? Finish::kPooled : Finish::kNone;
  progress_.push_back(progress_of(sequence, sequence.choices.front().index, finish));
  progress_.back().pooled = result.pooled;
  sequence.ended = over;
}

// Books what became of the drafts, and gives back the blocks that only wrong ones needed.
void Scheduler::Impl::record_drafts(Sequence& sequence, int drafted, int accepted) {
  sequence.drop_drafts();
  ++stats_.draft_count;
  stats_.draft_token_count += static_cast<std::uint64_t>(drafted);
  stats_.accepted_token_count += static_cast<std::uint64_t>(accepted);
  for (int i = 0; i < accepted; ++i) ++stats_.accepted_by_position[static_cast<std::size_t>(i)];
  speculation_.observe_drafts(sequence.acceptance, drafted, accepted);
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int length = pools_[g].tokens_per_block();
    sequence.tables[g].truncate((sequence.computed_count + length - 1) / length);
  }
}

// Without drafts `tokens` are those of sequence.choices, in order, and all but the first choice
// move out; with drafts they are the next ones of the one choice.
void Scheduler::Impl::take_tokens(Sequence& sequence, std::span<const SampledToken> tokens) {
  const std::vector<SequenceChoice> choices = std::exchange(sequence.choices, {});
  for (std::size_t i = 1; i < choices.size(); ++i) {
    SequencePtr other = fork(sequence, choices[i]);
    take_output(*other, tokens.subspan(i, 1));
    if (other->ended) {
      destroy(std::move(other));
    } else {
      forks_.push_back(std::move(other));
    }
  }
  sequence.choices.push_back(choices.front());
  take_output(sequence, choices.size() > 1 ? tokens.first(1) : tokens);
}

// The fork shares every block, the partial one too: who writes it first copies it.
Scheduler::Impl::SequencePtr Scheduler::Impl::fork(const Sequence& sequence,
                                                   const SequenceChoice& choice) {
  std::vector<BlockTable> tables;
  for (const BlockTable& table : sequence.tables) tables.push_back(table.share());
  Request& request = *sequence.request;
  ++request.sequence_count;
  ++request.tenant->sequence_count;
  auto copy = std::make_unique<Sequence>(request, std::move(tables));
  copy->choices.push_back(choice);
  copy->tokens = sequence.tokens;
  copy->computed_count = sequence.computed_count;
  copy->chain = sequence.chain;
  if (sequence.constraint != nullptr) copy->constraint = sequence.constraint->clone();
  return copy;
}

// What follows the token that ends the sequence is dropped.
void Scheduler::Impl::take_output(Sequence& sequence, std::span<const SampledToken> tokens) {
  const SequenceChoice& choice = sequence.choices.front();
  if (choice.kept_count >= 0) {
    end(sequence, Finish::kStopped);
    return;
  }
  Finish finish = Finish::kNone;
  Status broken;
  std::size_t count = 0;
  while (finish == Finish::kNone && count < tokens.size()) {
    sequence.tokens.push_back(tokens[count].token);
    finish = finish_after(sequence, tokens[count++].token, broken);
  }
  Tenant& tenant = *sequence.request->tenant;
  tenant.output_token_count += count;
  TenantBook::charge(tenant, static_cast<double>(count));
  if (finish == Finish::kEndToken || finish == Finish::kConstraintEnd) {
    output_length_.observe(sequence.output_count());
  }
  progress_.push_back(progress_of(sequence, choice.index, finish));
  progress_.back().status = std::move(broken);
  progress_.back().tokens.assign(tokens.begin(),
                                 tokens.begin() + static_cast<std::ptrdiff_t>(count));
  sequence.ended = finish != Finish::kNone;
}

// Moves the constraint on. `broken` is its error, should it not take the token.
Scheduler::Finish Scheduler::Impl::finish_after(Sequence& sequence, Token token,
                                                Status& broken) const {
  const Request& request = *sequence.request;
  const bool may_end = sequence.output_count() >= request.sampling.output_count_min;
  if (may_end && std::ranges::find(request.end_tokens, token) != request.end_tokens.end()) {
    return Finish::kEndToken;
  }
  if (sequence.constraint != nullptr) {
    broken = sequence.constraint->advance(token);
    if (!broken.ok()) return Finish::kNoToken;
    if (sequence.constraint->ending() == TokenConstraint::Ending::kReached) {
      return Finish::kConstraintEnd;
    }
  }
  return sequence.token_count() == request.token_count_max ? Finish::kLength : Finish::kNone;
}

Scheduler::Progress Scheduler::Impl::progress_of(const Sequence& sequence, std::uint32_t choice,
                                                 Finish finish) const {
  Progress progress = progress_of(*sequence.request, choice, finish);
  progress.output_count = sequence.output_count();
  return progress;
}

Scheduler::Progress Scheduler::Impl::progress_of(const Request& request, std::uint32_t choice,
                                                 Finish finish) {
  Progress progress;
  progress.sequence = request.id;
  progress.choice = choice;
  progress.finish = finish;
  progress.prompt_count = request.prompt_count;
  progress.cached_count = std::max(request.cached_count, 0);
  progress.queue_time = request.queue_time;
  return progress;
}

void Scheduler::Impl::remove_ended() {
  for (SequencePtr& sequence : running_) {
    if (sequence->ended) destroy(std::move(sequence));
  }
  std::erase(running_, nullptr);
}

}  // namespace kun
