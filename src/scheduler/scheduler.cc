// The books of requests: who is in, who is refused, who has left.
#include "scheduler/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "scheduler/scheduler_impl.h"

namespace kun {

namespace {

std::deque<KvBlockPool> make_pools(const SchedulerLimits& limits, const KvLayout& layout) {
  CHECK(!layout.groups.empty());
  CHECK(limits.block_counts.size() == layout.groups.size());
  std::deque<KvBlockPool> pools;
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    pools.emplace_back(limits.block_counts[g], layout.groups[g].tokens_per_block);
  }
  return pools;
}

}  // namespace

Scheduler::Impl::Impl(const SchedulerLimits& limits, const KvLayout& layout)
    : limits_(limits),
      pools_(make_pools(limits, layout)),
      prefixes_(pools_, limits.label_key),
      speculation_(limits.draft_count_max, limits.adaptive_drafts) {
  CHECK(limits.tokens_per_step_max > 0 && limits.sequences_running_max > 0);
  CHECK(limits.context_length_max > 1 && limits.draft_count_max >= 0);
  CHECK(limits.draft_count_max == 0 || layout.can_take_back());
  stats_.accepted_by_position.resize(static_cast<std::size_t>(limits.draft_count_max));
  // Then a token for each decoding sequence always fits into a step.
  limits_.sequences_running_max =
      std::min(limits.sequences_running_max, limits.tokens_per_step_max);
  limits_.tokens_per_step_min =
      std::clamp(limits.tokens_per_step_min, 1, limits.tokens_per_step_max);
  // The last output is never computed, so it needs no room in the cache.
  capacity_ = limits.context_length_max;
  for (const KvBlockPool& pool : pools_) {
    const std::int64_t held = std::int64_t{pool.block_count()} * pool.tokens_per_block();
    capacity_ = std::min(capacity_, held + 1);
  }
}

Status Scheduler::Impl::add(SequenceSpec spec, Microseconds now) {
  if (spec.prompt.empty()) return invalid_argument("the prompt is empty");
  if (spec.output_count_max < 1) {
    return invalid_argument("the output must be allowed at least one token");
  }
  if (spec.choice_count < 1 || spec.choice_count > limits_.sequences_running_max) {
    return invalid_argument(fmt::format("{} choices were asked for, and 1 to {} can run at once",
                                        spec.choice_count, limits_.sequences_running_max));
  }
  const std::int64_t prompt_count = std::ssize(spec.prompt);
  if (prompt_count + 1 > capacity_) {
    return invalid_argument(
        fmt::format("the prompt has {} tokens; with one token of output the limit is {}",
                    prompt_count, capacity_ - 1));
  }
  if (std::ssize(waiting_) >= limits_.sequences_waiting_max) {
    return resource_exhausted(
        fmt::format("{} requests are waiting already, try again later", waiting_.size()));
  }
  const auto [entry, is_new] = requests_.try_emplace(spec.id);
  CHECK(is_new);
  Request& request = entry->second;
  request.id = spec.id;
  request.priority = spec.priority;
  request.arrival = arrival_count_++;
  request.added_at = now;
  request.prompt_count = static_cast<int>(prompt_count);
  request.token_count_max =
      static_cast<int>(std::min(prompt_count + spec.output_count_max, capacity_));
  request.sampling = std::move(spec.sampling);
  request.prompt_logprob_count = spec.prompt_logprob_count;
  if (!spec.ignore_end_tokens) request.end_tokens = std::move(spec.end_tokens);

  SequencePtr sequence = make_sequence(request);
  for (int i = 0; i < spec.choice_count; ++i) {
    sequence->choices.push_back({.index = static_cast<std::uint32_t>(i), .kept_count = -1});
  }
  sequence->tokens = std::move(spec.prompt);
  sequence->chain = prefixes_.chain(spec.cache_salt);
  if (spec.constraint != nullptr) sequence->constraint = spec.constraint->clone();
  request.cache_salt = std::move(spec.cache_salt);
  const SequenceKey key = sequence->key();
  waiting_.emplace(key, std::move(sequence));
  return {};
}

std::vector<BlockTable> Scheduler::Impl::empty_tables() {
  std::vector<BlockTable> tables;
  tables.reserve(pools_.size());
  for (KvBlockPool& pool : pools_) tables.emplace_back(pool);
  return tables;
}

Scheduler::Impl::SequencePtr Scheduler::Impl::make_sequence(Request& request) {
  ++request.sequence_count;
  return std::make_unique<Sequence>(request, empty_tables());
}

void Scheduler::Impl::destroy(SequencePtr sequence) {
  Request& request = *sequence->request;
  sequence.reset();
  if (--request.sequence_count == 0) requests_.erase(request.id);
}

template <class Visit>
void Scheduler::Impl::visit_sequences(SequenceId id, const Visit& visit) {
  if (!requests_.contains(id)) return;
  for (const SequencePtr& sequence : running_) {
    if (sequence->request->id == id && !sequence->ended) visit(*sequence);
  }
  for (const auto& [key, sequence] : waiting_) {
    if (sequence->request->id == id) visit(*sequence);
  }
}

void Scheduler::Impl::cancel(SequenceId id) {
  visit_sequences(id, [](Sequence& sequence) { sequence.ended = true; });
  std::erase_if(progress_, [id](const Progress& progress) { return progress.sequence == id; });
  sweep();
}

void Scheduler::Impl::stop(SequenceId id, std::uint32_t choice, int kept_count) {
  visit_sequences(id, [&](Sequence& sequence) {
    const auto mine = std::ranges::find(sequence.choices, choice, &SequenceChoice::index);
    if (mine == sequence.choices.end() || mine->kept_count >= 0) return;
    mine->kept_count = std::clamp(kept_count, 0, sequence.output_count());
    if (sequence.planned_count > 0) return;  // apply() tells
    progress_.push_back(progress_of(sequence, choice, Finish::kStopped));
    progress_.back().output_count = mine->kept_count;
    if (sequence.choice_count() == 1) {
      sequence.ended = true;
      return;
    }
    sequence.choices.erase(mine);
  });
  sweep();
}

// Takes away what has ended and is not in the step that runs now.
void Scheduler::Impl::sweep() {
  forget_wishes();
  for (auto entry = waiting_.begin(); entry != waiting_.end();) {
    if (!entry->second->ended) {
      ++entry;
      continue;
    }
    destroy(std::move(entry->second));
    entry = waiting_.erase(entry);
  }
  if (!in_flight_) remove_ended();
}

Scheduler::Stats Scheduler::Impl::stats() const {
  Stats stats = stats_;
  for (const SequencePtr& sequence : running_) stats.running_count += sequence->choice_count();
  for (const auto& [key, sequence] : waiting_) stats.waiting_count += sequence->choice_count();
  for (const KvBlockPool& pool : pools_) {
    stats.free_block_count += pool.free_count();
    stats.total_block_count += pool.block_count();
  }
  return stats;
}

Scheduler::Scheduler(const SchedulerLimits& limits, const KvLayout& layout)
    : impl_(std::make_unique<Impl>(limits, layout)) {}
Scheduler::~Scheduler() = default;

Status Scheduler::add(SequenceSpec spec, Microseconds now) {
  return impl_->add(std::move(spec), now);
}
void Scheduler::cancel(SequenceId id) {
  impl_->cancel(id);
}
void Scheduler::stop(SequenceId id, std::uint32_t choice, int kept_count) {
  impl_->stop(id, choice, kept_count);
}
const std::vector<DraftWish>& Scheduler::draft_wishes() {
  return impl_->draft_wishes();
}
void Scheduler::offer_drafts(std::span<const std::vector<Token>> drafts, Microseconds elapsed) {
  impl_->offer_drafts(drafts, elapsed);
}
const BatchPlan& Scheduler::plan(Microseconds now) {
  return impl_->plan(now);
}
SamplingBatch& Scheduler::sampling() {
  return impl_->sampling();
}
std::vector<Scheduler::Progress> Scheduler::apply(const StepResult& result, Microseconds now) {
  return impl_->apply(result, now);
}
bool Scheduler::idle() const {
  return impl_->idle();
}
Scheduler::Stats Scheduler::stats() const {
  return impl_->stats();
}

}  // namespace kun
