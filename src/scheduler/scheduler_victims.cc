// Who gives way to whom. A waiting sequence may send away running ones of its own tenant that have
// a lower priority, and those of tenants that have been served more than their share; nobody is
// sent away unless that makes enough room.
#include <algorithm>

#include "scheduler/scheduler_impl.h"

namespace kun {
namespace {

bool goes_first(const Sequence& a, const Sequence& b) {
  const Tenant* mine = a.request->tenant;
  const Tenant* theirs = b.request->tenant;
  return mine == theirs ? a.key() < b.key() : goes_before(*mine, *theirs);
}

}  // namespace

// Virtual times have moved, hence the order of turns; for a single tenant nothing has.
void Scheduler::Impl::order_running() {
  const auto before = [](const SequencePtr& a, const SequencePtr& b) { return goes_first(*a, *b); };
  if (!std::ranges::is_sorted(running_, before)) std::ranges::sort(running_, before);
}

bool Scheduler::Impl::waiting_is_next(std::size_t next) {
  const Tenant* tenant = tenants_.next();
  if (tenant == nullptr) return false;
  if (next == running_.size()) return true;
  const Request& other = *running_[next]->request;
  if (other.tenant != tenant) return goes_before(*tenant, *other.tenant);
  return tenant->waiting.begin()->first.priority < other.priority;
}

// Those of running_[next...] that may be sent away for `candidate`, last of the order first.
void Scheduler::Impl::collect_victims(const Sequence& candidate, std::size_t next) {
  victims_.clear();
  const Request& mine = *candidate.request;
  double loss = 0.0;
  for (std::size_t i = running_.size(); i-- > next;) {
    Sequence& other = *running_[i];
    const Request& theirs = *other.request;
    if (theirs.tenant == mine.tenant) {
      if (mine.priority < theirs.priority) victims_.push_back(&other);
      continue;
    }
    const double more = loss + other.computed_count;
    if (other.sheltered || !tenants_.may_displace(*mine.tenant, *theirs.tenant, more)) continue;
    loss = more;
    victims_.push_back(&other);
  }
}

// Makes the sequence own the blocks of all its tokens and the slots of its choices, sending away
// whom it may. Each running sequence that stays keeps room to take one more block: to compute half
// a prompt and then lose it to a neighbour helps nobody.
bool Scheduler::Impl::make_room(Sequence& sequence, std::size_t next) {
  collect_victims(sequence, next);
  const int spare = static_cast<int>(running_.size() - victims_.size());
  if (!might_fit(sequence, spare)) return false;
  for (Sequence* victim : victims_) {
    if (budget_.slots >= sequence.choice_count() &&
        try_reserve(sequence, sequence.token_count(), spare)) {
      return true;
    }
    displace(sequence, *victim);
  }
  return budget_.slots >= sequence.choice_count() &&
         try_reserve(sequence, sequence.token_count(), spare);
}

// Whether sending away all victims would make room at all. Nobody is sent away in vain.
bool Scheduler::Impl::might_fit(const Sequence& candidate, int spare) {
  int slots = budget_.slots;
  for (const Sequence* victim : victims_) slots += victim->choice_count();
  if (slots < candidate.choice_count()) return false;
  for (std::size_t g = 0; g < pools_.size(); ++g) {
    const int missing = missing_block_count(candidate, g, candidate.token_count());
    if (missing == 0) continue;
    if (pools_[g].free_count() - spare >= missing) continue;
    const int released = released_block_count(victims_, g);
    if (pools_[g].free_count() + released - spare < missing) return false;
  }
  return true;
}

// How many blocks become free when all of `victims` go: those that nobody else holds. Siblings and
// prompts that begin alike share blocks, which count once, or not at all.
int Scheduler::Impl::released_block_count(std::span<Sequence* const> victims, std::size_t group) {
  const KvBlockPool& pool = pools_[group];
  released_.assign(static_cast<std::size_t>(pool.block_count()), 0);
  int count = 0;
  for (const Sequence* victim : victims) {
    for (const BlockId id : victim->tables[group].ids()) {
      if (id == kNoBlock) continue;
      if (++released_[static_cast<std::size_t>(id)] == pool.holder_count(id)) ++count;
    }
  }
  return count;
}

// Who makes another tenant compute again what it had pays for it, but for what is found in the
// cache in the end.
void Scheduler::Impl::displace(Sequence& candidate, Sequence& victim) {
  Tenant& tenant = *candidate.request->tenant;
  if (victim.request->tenant != &tenant) {
    settle(victim);
    victim.displaced_by = &tenant;
    victim.displaced_count = victim.computed_count;
    ++tenant.debt_count;
    TenantBook::charge(tenant, victim.computed_count);
    // Sent for at once, so it is not to be sent away again for the one that had to go.
    candidate.sheltered = candidate.sheltered || tenant.may_displace;
  }
  const auto place = std::ranges::find_if(
      running_, [&](const SequencePtr& sequence) { return sequence.get() == &victim; });
  preempt(static_cast<std::size_t>(place - running_.begin()));
}

// A displaced sequence comes back, or goes: what it has found in the cache was not lost.
void Scheduler::Impl::settle(Sequence& sequence) {
  Tenant* tenant = std::exchange(sequence.displaced_by, nullptr);
  if (tenant == nullptr) return;
  --tenant->debt_count;
  TenantBook::charge(*tenant, -std::min(sequence.displaced_count, sequence.computed_count));
}

// Its blocks keep their labels, so it often finds them again.
void Scheduler::Impl::preempt(std::size_t index) {
  SequencePtr victim = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  CHECK(victim->planned_count == 0);
  budget_.decode_count -= victim->decoding() ? 1 : 0;
  budget_.slots += victim->choice_count();
  ++stats_.preemption_count;
  ++victim->request->tenant->preemption_count;
  if (victim->waits_for_beams()) return park(std::move(victim));
  victim->rewind();
  tenants_.put(std::move(victim));
}

}  // namespace kun
