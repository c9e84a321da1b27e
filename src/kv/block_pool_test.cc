#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <list>
#include <map>
#include <random>

#include "kv/block_table.h"

namespace kun {
namespace {

using Tokens = std::vector<Token>;

BlockContent content(std::uint64_t label, const Tokens& tokens, std::uint64_t parent = 0) {
  return {.label = {.low = label, .high = ~label}, .parent = {.low = parent}, .tokens = tokens};
}

TEST(KvBlockPool, HandsOutEveryBlockOnceAndThenNone) {
  KvBlockPool pool(2, 1);
  const auto a = pool.allocate();
  const auto b = pool.allocate();
  ASSERT_TRUE(a && b);
  EXPECT_NE(a->id(), b->id());
  EXPECT_FALSE(pool.allocate());
  EXPECT_EQ(pool.free_count(), 0);
}

TEST(KvBlockPool, ReusesTheBlockReleasedLongestAgo) {
  KvBlockPool pool(2, 1);
  BlockRef a = *pool.allocate();
  BlockRef b = *pool.allocate();
  pool.set_label(a.id(), content(1, {1}));
  pool.set_label(b.id(), content(2, {2}));
  const BlockId first_released = b.id();
  b = {};
  a = {};
  EXPECT_EQ(pool.allocate()->id(), first_released);
  EXPECT_FALSE(pool.find(content(2, {2})));
  EXPECT_TRUE(pool.find(content(1, {1})));
}

TEST(KvBlockPool, ReusesABlockNobodyCanFindBeforeALabelledOne) {
  KvBlockPool pool(2, 1);
  BlockRef labelled = *pool.allocate();
  BlockRef plain = *pool.allocate();
  pool.set_label(labelled.id(), content(1, {1}));
  const BlockId id = plain.id();
  labelled = {};
  plain = {};
  EXPECT_EQ(pool.allocate()->id(), id);
}

TEST(KvBlockPool, FindsAReleasedBlockUntilItsRoomIsNeeded) {
  KvBlockPool pool(1, 2);
  {
    const BlockRef block = *pool.allocate();
    pool.set_label(block.id(), content(7, {1, 2}));
  }
  EXPECT_TRUE(pool.find(content(7, {1, 2})));
  EXPECT_EQ(pool.free_count(), 1);
  EXPECT_TRUE(pool.allocate());
  EXPECT_FALSE(pool.find(content(7, {1, 2})));
}

TEST(KvBlockPool, RefusesAnEqualLabelOverOtherTokensOrAnotherParent) {
  KvBlockPool pool(1, 2);
  const BlockRef block = *pool.allocate();
  pool.set_label(block.id(), content(7, {1, 2}, 5));
  EXPECT_TRUE(pool.find(content(7, {1, 2}, 5)));
  EXPECT_FALSE(pool.find(content(7, {1, 3}, 5)));
  EXPECT_FALSE(pool.find(content(7, {1, 2}, 6)));
}

TEST(KvBlockPool, GivesALabelToItsFirstClaimant) {
  KvBlockPool pool(2, 1);
  const BlockRef first = *pool.allocate();
  const BlockRef second = *pool.allocate();
  pool.set_label(first.id(), content(1, {1}));
  pool.set_label(second.id(), content(1, {1}));
  EXPECT_EQ(pool.find(content(1, {1}))->id(), first.id());
  EXPECT_FALSE(pool.labelled(second.id()));
}

TEST(KvBlockPool, ForgetsALabelOnDemandWhileOthersHoldTheBlock) {
  KvBlockPool pool(1, 1);
  const BlockRef block = *pool.allocate();
  pool.set_label(block.id(), content(1, {1}));
  pool.forget(block.id());
  EXPECT_FALSE(pool.find(content(1, {1})));
  EXPECT_EQ(pool.holder_count(block.id()), 1);
}

TEST(BlockTable, ReleasesItsLastBlockFirst) {
  KvBlockPool pool(2, 1);
  BlockTable table(pool);
  table.append(*pool.allocate());
  table.append(*pool.allocate());
  const BlockId head = table.id(0);
  pool.set_label(table.id(0), content(1, {1}));
  pool.set_label(table.id(1), content(2, {2}));
  table.clear();
  EXPECT_NE(pool.allocate()->id(), head);
}

TEST(BlockTable, SharesEveryBlockAndReplacesOnlyItsOwn) {
  KvBlockPool pool(2, 1);
  BlockTable table(pool);
  table.append(*pool.allocate());
  BlockTable other = table.share();
  EXPECT_EQ(pool.holder_count(table.id(0)), 2);
  { const BlockRef old = other.replace(0, *pool.allocate()); }
  EXPECT_EQ(pool.holder_count(table.id(0)), 1);
  EXPECT_NE(other.id(0), table.id(0));
}

// The pool as plain lists: slow, and obviously right.
class NaivePool {
 public:
  explicit NaivePool(int count) {
    for (BlockId id = 0; id < count; ++id) free_.push_back(id);
  }
  BlockId expect_allocate() {
    const BlockId id = free_.front();
    free_.pop_front();
    label_.erase(id);
    ++holders_[id];
    return id;
  }
  void hold(BlockId id) {
    if (holders_[id]++ == 0) free_.remove(id);
  }
  void release(BlockId id) {
    if (--holders_[id] > 0) return;
    label_.contains(id) ? free_.push_back(id) : free_.push_front(id);
  }
  void set_label(BlockId id, Token label) {
    if (!label_.contains(id) && find(label) < 0) label_[id] = label;
  }
  void forget(BlockId id) {
    if (label_.erase(id) == 0 || holders_[id] > 0) return;
    free_.remove(id);
    free_.push_front(id);
  }
  BlockId find(Token label) const {
    for (const auto& [id, own] : label_) {
      if (own == label) return id;
    }
    return -1;
  }
  int free_count() const { return static_cast<int>(free_.size()); }

 private:
  std::list<BlockId> free_;  // oldest first
  std::map<BlockId, int> holders_;
  std::map<BlockId, Token> label_;
};

void compare_with_naive(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const int count = static_cast<int>(random() % 12) + 1;
  KvBlockPool pool(count, 1);
  NaivePool naive(count);
  std::vector<BlockRef> held;
  for (int step = 0; step < 2000; ++step) {
    const auto label = static_cast<Token>(random() % 20);
    const Tokens tokens = {label};
    const auto name = content(static_cast<std::uint64_t>(label) % 16, tokens);
    const std::size_t some = held.empty() ? 0 : random() % held.size();
    switch (random() % 6) {
      case 0:
      case 1: {
        std::optional<BlockRef> block = pool.allocate();
        ASSERT_EQ(block.has_value(), naive.free_count() > 0);
        if (!block) break;
        ASSERT_EQ(block->id(), naive.expect_allocate());
        held.push_back(*std::move(block));
        break;
      }
      case 2: {
        if (label >= 16) {  // shares the label of another token: must never be found
          std::optional<BlockRef> wrong = pool.find(name);
          ASSERT_FALSE(wrong);
          break;
        }
        std::optional<BlockRef> block = pool.find(name);
        ASSERT_EQ(block ? block->id() : -1, naive.find(label));
        if (!block) break;
        naive.hold(block->id());
        held.push_back(*std::move(block));
        break;
      }
      case 3:
        if (held.empty() || label >= 16) break;
        pool.set_label(held[some].id(), name);
        naive.set_label(held[some].id(), label);
        break;
      case 4: {
        if (held.empty()) break;
        naive.release(held[some].id());
        std::swap(held[some], held.back());
        held.pop_back();
        break;
      }
      default:
        if (random() % 8 != 0) break;
        const auto id = static_cast<BlockId>(random() % static_cast<std::uint64_t>(count));
        pool.forget(id);
        naive.forget(id);
    }
    ASSERT_EQ(pool.free_count(), naive.free_count());
  }
}

TEST(KvBlockPool, DoesWhatPlainListsDoUnderRandomCalls) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    compare_with_naive(seed);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kun
