// What is asked of a drafter before a step is planned, and what becomes of its answer.
#include <algorithm>

#include "scheduler/scheduler_impl.h"

namespace kun {

const std::vector<DraftWish>& Scheduler::Impl::draft_wishes() {
  CHECK(!in_flight_);
  forget_wishes();
  if (!speculation_.enabled()) return wishes_;
  decoding_.clear();
  acceptances_.clear();
  for (const SequencePtr& sequence : running_) {
    if (sequence->ended || !sequence->decoding() || sequence->beam != nullptr) continue;
    decoding_.push_back(sequence.get());
    acceptances_.push_back(&sequence->acceptance);
  }
  const int most = limits_.draft_sequences_max;
  if (most > 0 && std::ssize(decoding_) > most) return wishes_;
  speculation_.choose(acceptances_, draft_counts_);
  for (std::size_t i = 0; i < decoding_.size(); ++i) {
    Sequence& sequence = *decoding_[i];
    const int count = std::min(draft_counts_[i], draft_room(sequence));
    if (count <= 0) continue;
    wishing_.push_back(&sequence);
    wishes_.push_back({.sequence = sequence.request->id,
                       .choice = sequence.choices.front().index,
                       .history = sequence.tokens,
                       .prompt_count = sequence.request->prompt_count,
                       .count_max = count,
                       .params = &sequence.request->sampling,
                       .cache_salt = sequence.request->cache_salt,
                       .blocks = {}});
    for (const BlockTable& table : sequence.tables) wishes_.back().blocks.push_back(table.ids());
  }
  return wishes_;
}

// A step gives one token more than drafts were right: what it may add to the sequence, less one.
int Scheduler::Impl::draft_room(const Sequence& sequence) const {
  return sequence.request->token_count_max - sequence.token_count() - 1;
}

void Scheduler::Impl::offer_drafts(std::span<const std::vector<Token>> drafts,
                                   Microseconds elapsed) {
  CHECK(drafts.size() == wishes_.size());
  int count = 0;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    CHECK(std::ssize(drafts[i]) <= wishes_[i].count_max);
    wishing_[i]->proposal = drafts[i];
    count += static_cast<int>(drafts[i].size());
  }
  speculation_.observe_drafting(count, elapsed);
  forget_wishes();
}

void Scheduler::Impl::forget_wishes() {
  wishes_.clear();
  wishing_.clear();
}

}  // namespace kun
