// How a step is composed. Sequences are served in one total order: by priority, then running
// before waiting, then by arrival. Victims of preemption are taken from the end of that order, so
// they are never in the plan yet, and the first of the order always advances: no deadlock.
#include <algorithm>

#include "scheduler/scheduler_impl.h"

namespace kun {

const BatchPlan& Scheduler::Impl::plan(Microseconds now) {
  CHECK(!in_flight_);
  start_plan(now);
  std::size_t next = 0;  // running_[0, next) have had their turn
  bool admitting = true;
  while (true) {
    if (admitting && waiting_is_next(next)) {
      admitting = admit(next);
      if (admitting) ++next;
    } else if (next < running_.size()) {
      if (advance(next)) ++next;
    } else {
      break;
    }
  }
  in_flight_ = !plan_.slices.empty();
  return plan_;
}

void Scheduler::Impl::start_plan(Microseconds now) {
  planned_at_ = now;
  ++plan_.step;
  plan_.block_copies.clear();
  for (PlanSlice& slice : plan_.slices) spare_slices_.push_back(std::move(slice));
  plan_.slices.clear();
  sampling_.rows.clear();
  planned_.clear();
  budget_ = {};
  budget_.slots = limits_.sequences_running_max;
  int draft_count = 0;
  for (const SequencePtr& sequence : running_) {
    budget_.slots -= sequence->choice_count();
    budget_.decode_count += sequence->decoding() ? 1 : 0;
    draft_count += static_cast<int>(sequence->proposal.size());
  }
  budget_.total = limits_.tokens_per_step_max;
  budget_.prompt = prompt_budget(budget_.decode_count, draft_count);
  if (!waiting_.empty() || budget_.decode_count < std::ssize(running_)) {
    budget_.kept =
        std::min(limits_.tokens_per_step_min, std::max(1, limits_.tokens_per_step_max / 4));
  }
  forget_wishes();
}

// Readers in mid-sentence set the pace: beside them prompts get what fits into the target time.
int Scheduler::Impl::prompt_budget(int decode_count, int draft_count) const {
  const int most = limits_.tokens_per_step_max;
  const double target = limits_.step_time_target > 0
                            ? static_cast<double>(limits_.step_time_target)
                            : limits_.decode_slowdown_max * cost_.step_us(decode_count);
  if (target <= 0.0 || decode_count == 0 || !cost_.known()) return most;
  const double count = cost_.tokens_within(target, decode_count + draft_count);
  return static_cast<int>(
      std::clamp(count, double(limits_.tokens_per_step_min), static_cast<double>(most)));
}

bool Scheduler::Impl::waiting_is_next(std::size_t next) const {
  if (waiting_.empty()) return false;
  if (next == running_.size()) return true;
  return waiting_.begin()->first.priority < running_[next]->request->priority;
}

// How many of its pending tokens a sequence may have in this step, unless one was set aside.
int Scheduler::Impl::prompt_share(const Sequence& sequence) const {
  const int room = std::min(budget_.prompt, budget_.total - budget_.decode_count);
  return std::min(sequence.pending_count(), std::max(room, 0));
}

// Gives running_[next] its next tokens. False when it had to give way itself.
bool Scheduler::Impl::advance(std::size_t next) {
  Sequence& sequence = *running_[next];
  const bool decoding = sequence.decoding();
  const int count = decoding ? 1 : prompt_share(sequence);
  if (count == 0) return true;
  if (!reserve(sequence, sequence.computed_count + count, 0, next + 1)) {
    preempt_last();
    return false;
  }
  (decoding ? budget_.decode_count : budget_.prompt) -= count;
  add_slice(sequence, count + take_proposal(sequence));
  return true;
}

// Puts the sequence's drafts behind its tokens, as many as find room, and returns their number.
// They send nobody away: each running sequence can still take one more block.
int Scheduler::Impl::take_proposal(Sequence& sequence) {
  if (sequence.proposal.empty()) return 0;
  const int room = budget_.total - 1 - budget_.decode_count - budget_.kept;
  const int wanted = static_cast<int>(sequence.proposal.size());
  const int count = sequence.decoding() ? std::clamp(room, 0, wanted) : 0;
  const int spare = static_cast<int>(running_.size());
  if (count > 0 && try_reserve(sequence, sequence.token_count() + count, spare)) {
    sequence.tokens.insert(sequence.tokens.end(), sequence.proposal.begin(),
                           sequence.proposal.begin() + count);
    sequence.draft_count = count;
  }
  sequence.proposal.clear();
  return sequence.draft_count;
}

// Lets the first of the waiting line run, as running_[next]. Nobody behind it may pass: a long
// prompt would else wait for as long as short ones arrive.
bool Scheduler::Impl::admit(std::size_t next) {
  Sequence& sequence = *waiting_.begin()->second;
  // Tokens set aside for others do not count here: they may turn out to be its victims.
  if (std::min(budget_.prompt, budget_.total) <= 0) return false;
  if (limits_.prefix_caching && !sequence.scores_prompt()) {
    // At least one token must be computed, or there would be no logits to sample from.
    const std::span<const Token> reusable =
        std::span(sequence.tokens).first(sequence.tokens.size() - 1);
    sequence.computed_count = prefixes_.match(reusable, sequence.chain, sequence.tables);
  }
  // All its tokens must fit, and leave each running sequence room to take one more block: to
  // compute half a prompt and then lose it to a neighbour helps nobody.
  const int spare = static_cast<int>(next);
  bool fits = might_fit(sequence, next);
  while (fits && budget_.slots < sequence.choice_count()) preempt_last();
  fits = fits && reserve(sequence, sequence.token_count(), spare, next);
  const int count = prompt_share(sequence);
  if (!fits || count == 0) {
    sequence.rewind();
    return false;
  }
  record_admission(sequence);
  budget_.slots -= sequence.choice_count();
  budget_.prompt -= count;
  const auto place = running_.begin() + static_cast<std::ptrdiff_t>(next);
  running_.insert(place, std::move(waiting_.begin()->second));
  waiting_.erase(waiting_.begin());
  add_slice(sequence, count);
  return true;
}

// Whether preempting running_[first_victim...] could make room at all. Nobody is sent away in vain.
bool Scheduler::Impl::might_fit(const Sequence& sequence, std::size_t first_victim) const {
  int slots = budget_.slots;
  for (std::size_t i = first_victim; i < running_.size(); ++i) slots += running_[i]->choice_count();
  if (slots < sequence.choice_count()) return false;
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    int blocks = pools_[g].free_count() - static_cast<int>(first_victim);
    for (std::size_t i = first_victim; i < running_.size(); ++i) {
      blocks += running_[i]->tables[g].size();
    }
    if (blocks < missing_block_count(sequence, g, sequence.token_count())) return false;
  }
  return true;
}

// Makes the sequence own the blocks of its first `token_count` tokens, those it will write alone,
// preempting from the end of running_ down to `first_victim`. False when that was not enough.
bool Scheduler::Impl::reserve(Sequence& sequence, int token_count, int spare,
                              std::size_t first_victim) {
  while (!try_reserve(sequence, token_count, spare)) {
    if (running_.size() <= first_victim) return false;
    preempt_last();
  }
  return true;
}

bool Scheduler::Impl::try_reserve(Sequence& sequence, int token_count, int spare) {
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int copies = must_copy(sequence, g) ? 1 : 0;
    const int missing = missing_block_count(sequence, g, token_count);
    if (missing + copies == 0) continue;
    if (missing + copies + spare > pools_[g].free_count()) return false;
  }
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    if (must_copy(sequence, g)) copy_partial_block(sequence, g);
    for (int i = missing_block_count(sequence, g, token_count); i > 0; --i) {
      sequence.tables[g].append(*pools_[g].allocate());
    }
  }
  return true;
}

int Scheduler::Impl::missing_block_count(const Sequence& sequence, std::size_t group,
                                         int token_count) const {
  const int length = pools_[group].tokens_per_block();
  return std::max((token_count + length - 1) / length - sequence.tables[group].size(), 0);
}

// Whether the block the sequence writes next still belongs to its sibling choices too.
bool Scheduler::Impl::must_copy(const Sequence& sequence, std::size_t group) const {
  const int length = pools_[group].tokens_per_block();
  if (sequence.computed_count % length == 0) return false;
  const BlockId id = sequence.tables[group].id(sequence.computed_count / length);
  return pools_[group].holder_count(id) > 1;
}

// The source stays with the siblings, which come later in the order. Should all of them be
// preempted in this plan, no copy follows that could have it as its target: whoever comes then is
// new and writes it after the copies.
void Scheduler::Impl::copy_partial_block(Sequence& sequence, std::size_t group) {
  const int index = sequence.computed_count / pools_[group].tokens_per_block();
  BlockRef block = *pools_[group].allocate();
  const BlockId to = block.id();
  const BlockRef from = sequence.tables[group].replace(index, std::move(block));
  plan_.block_copies.push_back({.group = static_cast<int>(group), .from = from.id(), .to = to});
}

// The last of the order has the least to lose: its blocks keep their labels, so often nothing.
void Scheduler::Impl::preempt_last() {
  SequencePtr last = std::move(running_.back());
  running_.pop_back();
  CHECK(last->planned_count == 0);
  budget_.decode_count -= last->decoding() ? 1 : 0;
  budget_.slots += last->choice_count();
  last->rewind();
  ++stats_.preemption_count;
  const SequenceKey key = last->key();
  waiting_.emplace(key, std::move(last));
}

void Scheduler::Impl::record_admission(Sequence& sequence) {
  Request& request = *sequence.request;
  if (request.cached_count >= 0) return;
  request.cached_count = sequence.computed_count;
  request.queue_time = planned_at_ - request.added_at;
  const auto prompt_count = static_cast<std::uint64_t>(request.prompt_count);
  stats_.prompt_token_count += prompt_count;
  if (!limits_.prefix_caching) return;
  stats_.prefix_query_token_count += prompt_count;
  stats_.prefix_hit_token_count += static_cast<std::uint64_t>(request.cached_count);
}

void Scheduler::Impl::add_slice(Sequence& sequence, int token_count) {
  CHECK(token_count > 0 && token_count <= budget_.total);
  budget_.total -= token_count;
  PlanSlice slice;
  if (!spare_slices_.empty()) {
    slice = std::move(spare_slices_.back());
    spare_slices_.pop_back();
  }
  const int end = sequence.computed_count + token_count;
  slice.sequence = sequence.request->id;
  slice.choice = sequence.choices.front().index;
  slice.first_position = sequence.computed_count;
  slice.tokens.assign(sequence.tokens.begin() + sequence.computed_count,
                      sequence.tokens.begin() + end);
  slice.blocks.resize(pools_.size());
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int length = pools_[g].tokens_per_block();
    const auto used = static_cast<std::size_t>((end + length - 1) / length);
    const std::span<const BlockId> ids = sequence.tables[g].ids().first(used);
    slice.blocks[g].assign(ids.begin(), ids.end());
  }
  slice.draft_count = sequence.draft_count;
  slice.wanted.clear();
  add_scores(sequence, slice);
  add_sampling_rows(sequence, slice);
  sequence.planned_count = token_count;
  planned_.push_back(&sequence);
  plan_.slices.push_back(std::move(slice));
}

// Rows of the slice that tell how likely the next token of the prompt was, where nobody was told.
void Scheduler::Impl::add_scores(Sequence& sequence, PlanSlice& slice) {
  sequence.scoring_count = 0;
  if (!sequence.scores_prompt()) return;
  const Request& request = *sequence.request;
  const auto count = static_cast<int>(slice.tokens.size());
  for (int offset = 0; offset < count; ++offset) {
    const int next = slice.first_position + offset + 1;
    if (next < request.scored_count || next >= request.prompt_count) continue;
    slice.wanted.push_back(offset);
    SamplingRow row;
    row.params = &request.sampling;
    row.history = std::span(sequence.tokens).first(static_cast<std::size_t>(next));
    row.prompt_count = request.prompt_count;
    row.given = sequence.tokens[static_cast<std::size_t>(next)];
    row.given_top_count = request.prompt_logprob_count;
    sampling_.rows.push_back(row);
    ++sequence.scoring_count;
  }
}

// A row for every choice, or one for the token behind each draft and one for the token before them.
void Scheduler::Impl::add_sampling_rows(const Sequence& sequence, PlanSlice& slice) {
  const auto token_count = static_cast<std::int32_t>(slice.tokens.size());
  if (slice.first_position + token_count != std::ssize(sequence.tokens)) return;
  const std::span<const Token> tokens = sequence.tokens;
  for (const SequenceChoice& choice : sequence.choices) {
    for (int left = sequence.draft_count; left >= 0; --left) {
      const std::size_t seen = tokens.size() - static_cast<std::size_t>(left);
      slice.wanted.push_back(token_count - 1 - left);
      sampling_.rows.push_back({.params = &sequence.request->sampling,
                                .history = tokens.first(seen),
                                .prompt_count = sequence.request->prompt_count,
                                .choice = choice.index,
                                .draft = left > 0 ? tokens[seen] : kNoDraft,
                                .constraint = sequence.constraint.get(),
                                .end_tokens = sequence.request->end_tokens,
                                .mask = {},
                                .mask_status = {}});
    }
  }
}

}  // namespace kun
