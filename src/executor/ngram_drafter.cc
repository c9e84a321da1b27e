// Places are named by the index of a run's last token, so that a run and what follows it are told
// by one number.
#include "executor/ngram_drafter.h"

#include <algorithm>

#include "base/check.h"

namespace kun {

namespace {

// Earlier occurrences that are compared. Beyond, the most recent ones will do.
constexpr int kCandidatesMax = 64;

constexpr std::size_t kTableMin = 256;

}  // namespace

void NgramIndex::update(std::span<const Token> text) {
  if (last_.size() < 2 * text.size()) grow(text, 2 * text.size());
  for (auto end = static_cast<int>(before_.size()); end < std::ssize(text); ++end) {
    before_.push_back(-1);
    insert(text, end);
  }
}

// The hash table is kept at most half full; it is filled anew when it grows.
void NgramIndex::grow(std::span<const Token> text, std::size_t size) {
  std::size_t capacity = kTableMin;
  while (capacity < size) capacity *= 2;
  last_.assign(capacity, -1);
  for (int end = 0; end < std::ssize(before_); ++end) insert(text, end);
}

void NgramIndex::insert(std::span<const Token> text, int end) {
  if (end + 1 < length_) return;
  std::uint64_t hash = 0;
  for (int i = 0; i < length_; ++i) {
    const auto token = static_cast<std::uint32_t>(text[static_cast<std::size_t>(end - i)]);
    hash = (hash ^ token) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29U;
  }
  std::int32_t& last = last_[static_cast<std::size_t>(hash) & (last_.size() - 1)];
  before_[static_cast<std::size_t>(end)] = last;
  last = end;
}

int NgramIndex::find(std::span<const Token> text, int longest) const {
  CHECK(before_.size() == text.size());
  const auto end = static_cast<int>(text.size()) - 1;
  if (end < 0) return -1;
  const auto agreement = [&](int other) {
    int count = 0;
    while (count < longest && count <= other &&
           text[static_cast<std::size_t>(other - count)] ==
               text[static_cast<std::size_t>(end - count)]) {
      ++count;
    }
    return count;
  };
  int best = -1;
  int best_count = length_ - 1;
  int place = before_[static_cast<std::size_t>(end)];
  for (int i = 0; i < kCandidatesMax && place >= 0 && best_count < longest; ++i) {
    const int count = agreement(place);
    if (count > best_count) {
      best = place + 1;
      best_count = count;
    }
    place = before_[static_cast<std::size_t>(place)];
  }
  return best;
}

Status NgramDrafter::propose(std::span<const DraftWish> wishes,
                             std::vector<std::vector<Token>>& drafts) {
  memory_.begin_round();
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    const std::span<const Token> text = wishes[i].history;
    State& state = memory_.at(wishes[i]);
    if (state.index.empty()) state.index.emplace_back(options_.shortest);
    state.index.front().update(text);
    const int place = state.index.front().find(text, options_.longest);
    if (place < 0) continue;
    // What follows may run into the drafts themselves: then the text has a period.
    for (auto next = static_cast<std::size_t>(place); std::ssize(drafts[i]) < wishes[i].count_max;
         ++next) {
      drafts[i].push_back(next < text.size() ? text[next] : drafts[i][next - text.size()]);
    }
  }
  return {};
}

// SplitMix64 (Steele, Lea, Flood, 2014).
Status RandomDrafter::propose(std::span<const DraftWish> wishes,
                              std::vector<std::vector<Token>>& drafts) {
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    for (int j = 0; j < wishes[i].count_max; ++j) {
      std::uint64_t x = state_ += 0x9E3779B97F4A7C15U;
      x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
      x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
      x ^= x >> 31U;
      drafts[i].push_back(static_cast<Token>(x % static_cast<std::uint64_t>(vocabulary_size_)));
    }
  }
  return {};
}

}  // namespace kun
