// How a step is composed. Sequences are served in one total order: by tenant, whoever has been
// served least first; of one tenant by priority, then running before waiting, then by arrival.
// Victims of preemption are taken from the end of that order, so they are never in the plan yet,
// and the first of the order always advances: no deadlock.
#include <algorithm>

#include "scheduler/scheduler_impl.h"

namespace kun {

const BatchPlan& Scheduler::Impl::plan(Microseconds now) {
  CHECK(!in_flight_);
  ++plan_.step;
  end_late(now);
  order_running();
  // Where nothing at all fits, beams that wait for one that is not running hold what it needs.
  do {
    start_plan(now);
    compose();
  } while (plan_.slices.empty() && tenants_.waiting_count() > 0 && park_answered());
  in_flight_ = !plan_.slices.empty();
  return plan_;
}

void Scheduler::Impl::compose() {
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
}

void Scheduler::Impl::start_plan(Microseconds now) {
  planned_at_ = now;
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
  if (tenants_.waiting_count() > 0 || budget_.decode_count < std::ssize(running_)) {
    budget_.kept =
        std::min(limits_.tokens_per_step_min, std::max(1, limits_.tokens_per_step_max / 4));
  }
  forget_wishes();
}

// Readers in mid-sentence set the pace: beside them prompts get what fits into the target time.
int Scheduler::Impl::prompt_budget(int decode_count, int draft_count) const {
  const int most = limits_.tokens_per_step_max;
  double target = limits_.step_time_target > 0
                      ? static_cast<double>(limits_.step_time_target)
                      : limits_.decode_slowdown_max * cost_.step_us(decode_count);
  // Readers who asked for a pace keep it, as far as that is up to prompts.
  if (const double pace = pace_limit(); pace > 0.0 && (target <= 0.0 || pace < target)) {
    target = pace;
  }
  if (target <= 0.0 || decode_count == 0 || !cost_.known()) return most;
  const double count = cost_.tokens_within(target, decode_count + draft_count);
  return static_cast<int>(
      std::clamp(count, double(limits_.tokens_per_step_min), static_cast<double>(most)));
}

// How many of its pending tokens a sequence may have in this step, unless one was set aside.
int Scheduler::Impl::prompt_share(const Sequence& sequence) const {
  const int room = std::min(budget_.prompt, budget_.total - budget_.decode_count);
  return std::min({sequence.pending_count(), std::max(room, 0), step_room(sequence)});
}

// Gives running_[next] its next tokens. False when it had to give way itself.
bool Scheduler::Impl::advance(std::size_t next) {
  Sequence& sequence = *running_[next];
  const bool decoding = sequence.decoding();
  const int count = decoding ? 1 : prompt_share(sequence);
  if (count == 0) return true;
  if (!reserve(sequence, sequence.computed_count + count, next + 1)) {
    preempt(next);
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
  const int room =
      std::min(budget_.total - 1 - budget_.decode_count - budget_.kept, step_room(sequence) - 1);
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
  Tenant& tenant = *tenants_.next();
  const double start = tenant.virtual_time;
  Sequence& sequence = *tenant.waiting.begin()->second;
  // Tokens set aside for others do not count here: they may turn out to be its victims.
  if (std::min(budget_.prompt, budget_.total) <= 0) return false;
  if (limits_.prefix_caching) {
    const std::span<const Token> reusable =
        std::span(sequence.tokens).first(static_cast<std::size_t>(sequence.reusable_count()));
    sequence.computed_count = prefixes_.match(reusable, sequence.chain, sequence.tables);
    if (is_being_computed(sequence, reusable)) {
      sequence.rewind();
      return false;
    }
  }
  const bool fits = make_room(sequence, next);
  const int count = prompt_share(sequence);
  if (!fits || count == 0) {
    sequence.rewind();
    return false;
  }
  tenants_.admitted(tenant, start);
  settle(sequence);
  record_admission(sequence);
  budget_.slots -= sequence.choice_count();
  budget_.prompt -= count;
  const auto place = running_.begin() + static_cast<std::ptrdiff_t>(next);
  SequencePtr first = tenants_.take_first(tenant);
  CHECK(first.get() == &sequence);
  running_.insert(place, std::move(first));
  add_slice(sequence, count);
  return true;
}

// Whether a prompt in this step's plan computes what the sequence would compute next: prompts that
// begin alike and come together share the beginning if all but one wait until it has its labels.
bool Scheduler::Impl::is_being_computed(const Sequence& sequence,
                                        std::span<const Token> reusable) const {
  const auto first = static_cast<std::size_t>(sequence.computed_count);
  const auto unit = static_cast<std::size_t>(prefixes_.unit());
  return std::ranges::any_of(planned_, [&](const Sequence* other) {
    const auto begin = static_cast<std::size_t>(other->computed_count);
    const std::size_t end = begin + static_cast<std::size_t>(other->planned_count);
    return begin <= first && first + unit <= std::min(end, reusable.size()) &&
           other->chain.root == sequence.chain.root &&
           std::ranges::equal(reusable.subspan(first, unit),
                              std::span(other->tokens).subspan(first, unit)) &&
           std::ranges::equal(reusable.first(first), std::span(other->tokens).first(first));
  });
}

// Makes the sequence own the blocks of its first `token_count` tokens, those it will write alone,
// preempting from the end of running_ down to `first_victim`. False when that was not enough.
bool Scheduler::Impl::reserve(Sequence& sequence, int token_count, std::size_t first_victim) {
  while (!try_reserve(sequence, token_count, 0)) {
    if (running_.size() <= first_victim) return false;
    preempt(running_.size() - 1);
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

// Tokens that the sequence may have in one step: what it writes and what it reads of a group with a
// window must fit that group's pool together.
int Scheduler::Impl::step_room(const Sequence& sequence) const {
  std::int64_t end = std::int64_t{sequence.computed_count} + limits_.tokens_per_step_max;
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    if (layout_.groups[g].window == 0) continue;
    const std::int64_t first = layout_.groups[g].first_block_read(sequence.computed_count);
    end = std::min(end, (first + pools_[g].block_count()) * pools_[g].tokens_per_block());
  }
  return static_cast<int>(end - sequence.computed_count);
}

// Of a group with a window nobody holds more than the next step needs: blocks pass on meanwhile.
int Scheduler::Impl::missing_block_count(const Sequence& sequence, std::size_t group,
                                         int token_count) const {
  const int length = pools_[group].tokens_per_block();
  if (layout_.groups[group].window > 0) {
    token_count = std::min(token_count, sequence.computed_count + step_room(sequence));
  }
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

void Scheduler::Impl::record_admission(Sequence& sequence) {
  Request& request = *sequence.request;
  if (request.cached_count >= 0) return;
  request.cached_count = sequence.computed_count;
  request.charged_count = sequence.computed_count;
  request.tenant->cached_token_count += static_cast<std::uint64_t>(request.cached_count);
  TenantBook::charge(*request.tenant, kCachedTokenCost * request.cached_count);
  request.queue_time = planned_at_ - request.added_at;
  const auto prompt_count = static_cast<std::uint64_t>(request.prompt_count);
  stats_.prompt_token_count += prompt_count;
  if (!limits_.prefix_caching) return;
  stats_.prefix_query_token_count += prompt_count;
  stats_.prefix_hit_token_count += static_cast<std::uint64_t>(request.cached_count);
}

// Prompt tokens are charged when they are computed for the first time; outputs when they are told.
void Scheduler::Impl::charge_prompt(Sequence& sequence, int end) {
  Request& request = *sequence.request;
  const int count = std::min(end, request.prompt_count) - request.charged_count;
  if (count <= 0) return;
  request.charged_count += count;
  request.tenant->prompt_token_count += static_cast<std::uint64_t>(count);
  TenantBook::charge(*request.tenant, count);
}

void Scheduler::Impl::add_slice(Sequence& sequence, int token_count) {
  CHECK(token_count > 0 && token_count <= budget_.total);
  budget_.total -= token_count;
  charge_prompt(sequence, sequence.computed_count + token_count);
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
  slice.pooling = sequence.request->pooling;
  if (sequence.pools()) {
    add_pooled_rows(sequence, slice);
  } else {
    add_scores(sequence, slice);
    add_sampling_rows(sequence, slice);
  }
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

// Rows whose hidden states nobody has told of: one or all of them.
void Scheduler::Impl::add_pooled_rows(const Sequence& sequence, PlanSlice& slice) {
  const auto count = static_cast<std::int32_t>(slice.tokens.size());
  const Request& request = *sequence.request;
  const int first =
      request.pooling == Pooling::kMean ? request.pooled_count : request.prompt_count - 1;
  for (int offset = std::max(first - slice.first_position, 0); offset < count; ++offset) {
    slice.wanted.push_back(offset);
  }
}

// A row for every choice, or one for the token behind each draft and one for the token before them.
void Scheduler::Impl::add_sampling_rows(const Sequence& sequence, PlanSlice& slice) {
  const auto token_count = static_cast<std::int32_t>(slice.tokens.size());
  if (slice.first_position + token_count != std::ssize(sequence.tokens)) return;
  if (sequence.beam != nullptr) return add_candidate_rows(sequence, slice);
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
