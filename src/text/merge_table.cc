// Short words, which nearly all are, look for the lowest rank by scanning; long ones keep a heap.
// Heap entries go stale when a neighbour merges: an entry counts only while the pair that starts
// at its position still has its rank.
#include "text/merge_table.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/check.h"

namespace kun {
namespace {

constexpr std::size_t kShortMax = 48;
constexpr std::uint32_t kNone = UINT32_MAX;

std::size_t power_of_two_above(std::size_t count) {
  std::size_t power = 16;
  while (power < count) power *= 2;
  return power;
}

}  // namespace

MergeTable::MergeTable(std::size_t count)
    : slots_(power_of_two_above(count * 2)), mask_(slots_.size() - 1) {}

void MergeTable::add(Token left, Token right, Merge merge) {
  DCHECK(left >= 0 && right >= 0);
  const std::uint64_t key = key_of(left, right);
  std::size_t at = slot_of(key);
  while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
  if (slots_[at].key == kEmpty) {
    CHECK(++count_ < slots_.size());
    slots_[at].key = key;
  }
  if (merge.rank < slots_[at].merge.rank) slots_[at].merge = merge;
}

void MergeTable::merge(std::vector<Token>& symbols, MergeScratch& scratch) const {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShortMax) {
    merge_short(symbols);
  } else {
    merge_long(symbols, scratch);
  }
}

void MergeTable::merge_short(std::vector<Token>& symbols) const {
  std::array<Merge, kShortMax> pairs;
  std::size_t count = symbols.size();
  for (std::size_t i = 0; i + 1 < count; ++i) pairs[i] = find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoMerge) break;
    symbols[best] = pairs[best].result;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (std::size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best + 1 < count) pairs[best] = find(symbols[best], symbols[best + 1]);
    if (best > 0) pairs[best - 1] = find(symbols[best - 1], symbols[best]);
  }
  symbols.resize(count);
}

void MergeTable::merge_long(std::vector<Token>& symbols, MergeScratch& s) const {
  const auto count = static_cast<std::uint32_t>(symbols.size());
  CHECK(symbols.size() < kNone);
  s.next.resize(count);
  s.previous.resize(count);
  s.rank.assign(count, kNoMerge);
  s.result.resize(count);
  s.heap.clear();
  const auto look_up = [&](std::uint32_t at) {
    const std::uint32_t right = s.next[at];
    const Merge found = right == kNone ? Merge{} : find(symbols[at], symbols[right]);
    s.rank[at] = found.rank;
    s.result[at] = found.result;
    if (found.rank != kNoMerge) s.heap.push_back((std::uint64_t{found.rank} << 32U) | at);
    return found.rank != kNoMerge;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    s.next[i] = i + 1 < count ? i + 1 : kNone;
    s.previous[i] = i > 0 ? i - 1 : kNone;
    look_up(i);
  }
  const auto later = std::greater<>();
  std::make_heap(s.heap.begin(), s.heap.end(), later);
  const auto renew = [&](std::uint32_t at) {
    if (look_up(at)) std::push_heap(s.heap.begin(), s.heap.end(), later);
  };
  while (!s.heap.empty()) {
    std::pop_heap(s.heap.begin(), s.heap.end(), later);
    const auto rank = static_cast<std::uint32_t>(s.heap.back() >> 32U);
    const auto at = static_cast<std::uint32_t>(s.heap.back());
    s.heap.pop_back();
    if (s.rank[at] != rank) continue;
    const std::uint32_t gone = s.next[at];
    symbols[at] = s.result[at];
    s.next[at] = s.next[gone];
    s.rank[gone] = kNoMerge;
    if (s.next[at] != kNone) s.previous[s.next[at]] = at;
    renew(at);
    if (s.previous[at] != kNone) renew(s.previous[at]);
  }
  std::size_t kept = 0;
  for (std::uint32_t i = 0; i != kNone; i = s.next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace kun
