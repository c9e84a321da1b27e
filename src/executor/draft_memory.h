// What a drafter remembers of each sequence. Nobody tells it when a sequence ends, so what was not
// used for a while is forgotten, and a bound holds whatever happens: to forget costs time only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "plan/draft_wish.h"

namespace kun {

template <class State>
class DraftMemory {
 public:
  explicit DraftMemory(std::size_t count_max) : count_max_(count_max) {}

  // Call once before each round of at().
  void begin_round() {
    ++round_;
    if (round_ % kRoundsKept == 0 || entries_.size() > count_max_) {
      const std::uint64_t kept = entries_.size() > count_max_ ? 1 : kRoundsKept;
      std::erase_if(entries_, [&](const auto& e) { return e.second.used_in + kept < round_; });
    }
  }

  // The state of the wish's sequence, new if it is not known. References hold until forgotten.
  State& at(const DraftWish& wish) { return at(wish.sequence, wish.choice); }
  State& at(SequenceId sequence, std::uint32_t choice) {
    Entry& entry = entries_[{sequence, choice}];
    entry.used_in = round_;
    return entry.state;
  }

  // nullptr when it is not known. Looking is no use: it may be forgotten all the same.
  const State* find(SequenceId sequence, std::uint32_t choice) const {
    const auto entry = entries_.find({sequence, choice});
    return entry == entries_.end() ? nullptr : &entry->second.state;
  }

  // Forgets the state used longest ago, unless it is of this round. False when there is none.
  bool forget_oldest() {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->second.used_in == round_) continue;
      if (oldest == entries_.end() || entry->second.used_in < oldest->second.used_in) {
        oldest = entry;
      }
    }
    if (oldest == entries_.end()) return false;
    entries_.erase(oldest);
    return true;
  }

  std::size_t size() const { return entries_.size(); }

 private:
  static constexpr std::uint64_t kRoundsKept = 256;

  struct Key {
    SequenceId sequence;
    std::uint32_t choice;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      return static_cast<std::size_t>((key.sequence * 0x9E3779B97F4A7C15U) ^ key.choice);
    }
  };
  struct Entry {
    State state;
    std::uint64_t used_in = 0;  // round
  };

  std::size_t count_max_;
  std::uint64_t round_ = 0;
  std::unordered_map<Key, Entry, KeyHash> entries_;
};

}  // namespace kun
