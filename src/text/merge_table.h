// Which neighbouring symbols merge, in which order and into what; and the merging itself. Both
// kinds of byte-pair encoding come down to this table: ranks are the merge list's order, or the
// order of the scores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/token.h"

namespace kun {

// What merging a long word writes to. One per thread at a time.
struct MergeScratch {
  std::vector<std::uint32_t> next;
  std::vector<std::uint32_t> previous;
  std::vector<std::uint32_t> rank;  // of the pair that starts at a symbol
  std::vector<Token> result;        // of that pair
  std::vector<std::uint64_t> heap;  // rank in the upper, position in the lower half
};

// Const once filled.
class MergeTable {
 public:
  static constexpr std::uint32_t kNoMerge = UINT32_MAX;

  struct Merge {
    std::uint32_t rank = kNoMerge;
    Token result = -1;
  };

  // Room for `count` pairs.
  explicit MergeTable(std::size_t count);

  // Of several merges of one pair the lowest rank counts. Requires: room, ids not negative.
  void add(Token left, Token right, Merge merge);
  Merge find(Token left, Token right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t at = slot_of(key);; at = (at + 1) & mask_) {
      if (slots_[at].key == key) return slots_[at].merge;
      if (slots_[at].key == kEmpty) return {};
    }
  }
  std::size_t count() const { return count_; }

  // Merges the pair of lowest rank, the leftmost of equals, until none is left. Time is
  // O(n log n) in the count of symbols. Requires: fewer than 2^32 symbols.
  void merge(std::vector<Token>& symbols, MergeScratch& scratch) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = UINT64_MAX;

  static std::uint64_t key_of(Token left, Token right) {
    return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32U) |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const {
    key = (key ^ (key >> 29U)) * 0x9E3779B97F4A7C15U;
    return static_cast<std::size_t>(key >> 32U) & mask_;
  }

  void merge_short(std::vector<Token>& symbols) const;
  void merge_long(std::vector<Token>& symbols, MergeScratch& scratch) const;

  std::vector<Slot> slots_;
  std::size_t mask_ = 0;
  std::size_t count_ = 0;
};

}  // namespace kun
