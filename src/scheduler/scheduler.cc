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

TenantStats stats_of(const Tenant& tenant) {
  const auto waiting_count = static_cast<int>(tenant.waiting.size());
  return {.name = tenant.name,
          .weight = tenant.weight,
          .running_count = tenant.sequence_count - waiting_count,
          .waiting_count = waiting_count,
          .prompt_token_count = tenant.prompt_token_count,
          .cached_token_count = tenant.cached_token_count,
          .output_token_count = tenant.output_token_count,
          .preemption_count = tenant.preemption_count,
          .refused_count = tenant.refused_count};
}

}  // namespace

SchedulerState::SchedulerState(const SchedulerLimits& limits, const KvLayout& layout)
    : limits_(limits),
      layout_(layout),
      pools_(make_pools(limits, layout)),
      prefixes_(pools_, layout, limits.label_key),
      speculation_(limits.draft_count_max, limits.adaptive_drafts),
      tenants_(limits.tenant_credit) {}

Scheduler::Impl::Impl(const SchedulerLimits& limits, const KvLayout& layout)
    : SchedulerState(limits, layout) {
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
  capacity_ = pooled_max_ = limits.context_length_max;
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const std::int64_t held = layout.groups[g].token_capacity(pools_[g].block_count());
    capacity_ = std::min(capacity_ - 1, held) + 1;
    pooled_max_ = std::min(pooled_max_, held);
  }
}

Status Scheduler::Impl::add(SequenceSpec spec, Microseconds now) {
  refusal_ = {};
  if (spec.prompt.empty()) return invalid_argument("the prompt is empty");
  if (spec.output_count_max < 1) {
    return invalid_argument("the output must be allowed at least one token");
  }
  if (spec.choice_count < 1 || spec.choice_count > limits_.sequences_running_max) {
    return invalid_argument(fmt::format("{} choices were asked for, and 1 to {} can run at once",
                                        spec.choice_count, limits_.sequences_running_max));
  }
  const std::int64_t prompt_count = std::ssize(spec.prompt);
  RETURN_IF_ERROR(check_beams(spec));
  if (spec.pooling != Pooling::kNone) {
    CHECK(spec.choice_count == 1 && spec.prompt_logprob_count < 0 && spec.constraint == nullptr);
    if (prompt_count > pooled_max_) {
      return invalid_argument(
          fmt::format("the prompt has {} tokens; the limit is {}", prompt_count, pooled_max_));
    }
  } else if (prompt_count + 1 > capacity_) {
    return invalid_argument(
        fmt::format("the prompt has {} tokens; with one token of output the limit is {}",
                    prompt_count, capacity_ - 1));
  }
  Tenant& tenant = tenants_.arrive(spec.tenant, spec.tenant_weight);
  if (!tenants_.has_room(tenant, limits_.sequences_waiting_max)) {
    ++tenant.refused_count;
    refusal_ = {kCodeQueueFull, admission_time()};
    return resource_exhausted(
        fmt::format("{} requests are waiting already, try again later", tenants_.waiting_count()));
  }
  Request request;
  request.tenant = &tenant;
  request.id = spec.id;
  request.priority = spec.priority;
  request.arrival = arrival_count_++;
  request.added_at = now;
  request.prompt_count = static_cast<int>(prompt_count);
  request.token_count_max =
      static_cast<int>(std::min(prompt_count + spec.output_count_max, capacity_));
  request.sampling = std::move(spec.sampling);
  request.prompt_logprob_count = spec.prompt_logprob_count;
  request.pooling = spec.pooling;
  if (!spec.ignore_end_tokens) request.end_tokens = std::move(spec.end_tokens);
  PrefixChain chain = prefixes_.chain(spec.cache_salt);
  if (spec.deadlines.any()) {
    if (Status status = refuse_late(spec, chain, request, now); !status.ok()) {
      ++tenant.refused_count;
      return status;
    }
  }
  const auto [entry, is_new] = requests_.try_emplace(spec.id, std::move(request));
  CHECK(is_new);

  SequencePtr sequence = make_sequence(entry->second);
  for (int i = 0; i < spec.choice_count; ++i) {
    sequence->choices.push_back({.index = static_cast<std::uint32_t>(i), .kept_count = -1});
  }
  if (spec.beams.width > 0) begin_beams(*sequence, spec);
  sequence->tokens = std::move(spec.prompt);
  sequence->chain = std::move(chain);
  if (spec.constraint != nullptr) sequence->constraint = spec.constraint->clone();
  entry->second.cache_salt = std::move(spec.cache_salt);
  if (spec.deadlines.any()) ++timed_count_;
  tenants_.put(std::move(sequence));
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
  ++request.tenant->sequence_count;
  return std::make_unique<Sequence>(request, empty_tables());
}

void Scheduler::Impl::destroy(SequencePtr sequence) {
  settle(*sequence);
  Request& request = *sequence->request;
  sequence.reset();
  --request.tenant->sequence_count;
  if (--request.sequence_count > 0) return;
  if (request.first_token_by > 0 || request.end_by > 0 || request.per_token_max > 0) --timed_count_;
  requests_.erase(request.id);
}

template <class Visit>
void Scheduler::Impl::visit_sequences(SequenceId id, const Visit& visit) {
  const auto request = requests_.find(id);
  if (request == requests_.end()) return;
  for (const SequencePtr& sequence : running_) {
    if (sequence->request->id == id && !sequence->ended) visit(*sequence);
  }
  for (const auto& [key, sequence] : request->second.tenant->waiting) {
    if (sequence->request->id == id) visit(*sequence);
  }
}

void Scheduler::Impl::cancel(SequenceId id) {
  visit_sequences(id, [](Sequence& sequence) { sequence.ended = true; });
  const auto entry = requests_.find(id);
  if (entry != requests_.end() && entry->second.beams != nullptr) leave_beams(entry->second);
  std::erase_if(progress_, [id](const Progress& progress) { return progress.sequence == id; });
  sweep();
}

void Scheduler::Impl::stop(SequenceId id, std::uint32_t choice, int kept_count) {
  visit_sequences(id, [&](Sequence& sequence) {
    if (sequence.beam != nullptr) return;  // nobody has read anything of it yet
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
  tenants_.sweep([this](SequencePtr& sequence) {
    if (!sequence->ended) return false;
    destroy(std::move(sequence));
    return true;
  });
  if (!in_flight_) remove_ended();
}

bool Scheduler::Impl::idle() const {
  return running_.empty() && tenants_.waiting_count() == 0 && progress_.empty();
}

Scheduler::Stats Scheduler::Impl::stats() const {
  Stats stats = stats_;
  for (const SequencePtr& sequence : running_) stats.running_count += sequence->choice_count();
  for (const auto& [name, tenant] : tenants_.all()) {
    for (const auto& [key, sequence] : tenant.waiting) {
      stats.waiting_count += sequence->choice_count();
    }
    stats.tenants.push_back(stats_of(tenant));
  }
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
const Refusal& Scheduler::refusal() const {
  return impl_->refusal();
}
Microseconds Scheduler::admission_time() {
  return impl_->admission_time();
}
bool Scheduler::idle() const {
  return impl_->idle();
}
Scheduler::Stats Scheduler::stats() const {
  return impl_->stats();
}

}  // namespace kun
