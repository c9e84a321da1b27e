#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace kun {
namespace {

constexpr std::uint64_t kKey[2] = {1, 2};

class PrefixCacheTest : public testing::Test {
 protected:
  PrefixCacheTest() {
    pools_.emplace_back(16, 2);
    pools_.emplace_back(16, 4);
    cache_ = std::make_unique<PrefixCache>(
        pools_, KvLayout{{{.tokens_per_block = 2}, {.tokens_per_block = 4}}}, kKey);
  }

  std::vector<BlockTable> tables() {
    std::vector<BlockTable> tables;
    for (KvBlockPool& pool : pools_) tables.emplace_back(pool);
    return tables;
  }

  // Computes `tokens` without looking into the cache, and publishes them.
  void compute(const std::vector<Token>& tokens, std::string_view salt = "") {
    std::vector<BlockTable> mine = tables();
    for (std::size_t g = 0; g < pools_.size(); ++g) {
      const auto length = static_cast<std::size_t>(pools_[g].tokens_per_block());
      while (mine[g].ids().size() * length < tokens.size()) {
        mine[g].append(*pools_[g].allocate());
      }
    }
    PrefixChain chain = cache_->chain(salt);
    cache_->publish(tokens, chain, mine);
  }

  int match(const std::vector<Token>& tokens, std::string_view salt = "") {
    std::vector<BlockTable> mine = tables();
    PrefixChain chain = cache_->chain(salt);
    const int matched = cache_->match(tokens, chain, mine);
    EXPECT_EQ(mine[0].size() * 2, matched);
    EXPECT_EQ(mine[1].size() * 4, matched);
    return matched;
  }

  std::deque<KvBlockPool> pools_;
  std::unique_ptr<PrefixCache> cache_;
};

std::vector<Token> numbers(int count) {
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

TEST_F(PrefixCacheTest, FindsTheLongestCommonRunOfWholeUnits) {
  compute(numbers(11));
  EXPECT_EQ(match(numbers(11)), 8);
  EXPECT_EQ(match(numbers(7)), 4);
  std::vector<Token> other = numbers(8);
  other[5] = 99;
  EXPECT_EQ(match(other), 4);
  other[0] = 99;
  EXPECT_EQ(match(other), 0);
}

TEST_F(PrefixCacheTest, NeverSharesBetweenSalts) {
  compute(numbers(8), "one");
  EXPECT_EQ(match(numbers(8), "one"), 8);
  EXPECT_EQ(match(numbers(8), "two"), 0);
  EXPECT_EQ(match(numbers(8)), 0);
}

TEST_F(PrefixCacheTest, SharesNothingThatOneGroupHasLost) {
  compute(numbers(8));
  // Group 1 gives all its room to others; group 0 still has its blocks.
  std::vector<BlockRef> others;
  while (std::optional<BlockRef> block = pools_[1].allocate()) others.push_back(*std::move(block));
  EXPECT_EQ(match(numbers(8)), 0);
}

TEST_F(PrefixCacheTest, GivesTheSameTokensAnotherLabelAtAnotherPlace) {
  compute({1, 2, 3, 4, 1, 2, 3, 4});
  EXPECT_EQ(match({1, 2, 3, 4, 9, 9, 9, 9}), 4);
  EXPECT_EQ(match({9, 9, 9, 9, 1, 2, 3, 4}), 0);
}

TEST_F(PrefixCacheTest, ReleasesWhatItLookedAt) {
  compute(numbers(8));
  match(numbers(8));
  for (const KvBlockPool& pool : pools_) EXPECT_EQ(pool.free_count(), pool.block_count());
}

// Group 0 needs all its blocks of 4, group 1 those of 2 that hold the last 5 tokens but one.
class WindowedPrefixCache : public testing::Test {
 protected:
  WindowedPrefixCache() {
    layout_.groups = {{.tokens_per_block = 4}, {.tokens_per_block = 2, .window = 5}};
    pools_.emplace_back(16, 4);
    pools_.emplace_back(16, 2);
    cache_ = std::make_unique<PrefixCache>(pools_, layout_, kKey);
    chain_ = cache_->chain("");
    for (KvBlockPool& pool : pools_) tables_.emplace_back(pool);
  }

  // Goes on computing `tokens` up to `end`, and gives back what has passed.
  void compute(const std::vector<Token>& tokens, int end) {
    for (std::size_t g = 0; g < pools_.size(); ++g) {
      const int length = pools_[g].tokens_per_block();
      while (tables_[g].size() * length < end) tables_[g].append(*pools_[g].allocate());
    }
    const auto computed = static_cast<std::size_t>(end);
    cache_->publish(std::span(tokens).first(computed), chain_, tables_);
    for (std::size_t g = 0; g < pools_.size(); ++g) {
      tables_[g].release_before(layout_.groups[g].first_block_read(end));
    }
  }

  int match(const std::vector<Token>& tokens) {
    std::vector<BlockTable> mine;
    for (KvBlockPool& pool : pools_) mine.emplace_back(pool);
    PrefixChain chain = cache_->chain("");
    const int matched = cache_->match(tokens, chain, mine);
    for (std::size_t g = 0; g < pools_.size(); ++g) {
      EXPECT_EQ(mine[g].size() * pools_[g].tokens_per_block(), matched);
      EXPECT_EQ(mine[g].empty_count(), layout_.groups[g].first_block_read(matched));
    }
    return matched;
  }

  void take_all_free(std::size_t group, std::vector<BlockRef>& others) {
    while (auto block = pools_[group].allocate()) others.push_back(*std::move(block));
  }

  KvLayout layout_;
  std::deque<KvBlockPool> pools_;
  std::unique_ptr<PrefixCache> cache_;
  PrefixChain chain_;
  std::vector<BlockTable> tables_;
};

TEST_F(WindowedPrefixCache, FindsARunWhoseEarlierBlocksWereGivenBackAndReused) {
  compute(numbers(16), 16);
  EXPECT_EQ(tables_[1].held_count(), 2);
  EXPECT_EQ(tables_[1].empty_count(), 6);
  std::vector<BlockRef> others;
  take_all_free(1, others);
  EXPECT_EQ(match(numbers(16)), 16);
  EXPECT_EQ(match(numbers(15)), 0) << "what the tokens behind 12 read is gone";
}

TEST_F(WindowedPrefixCache, EndsTheRunWhereTheWindowIsStillThere) {
  compute(numbers(12), 12);
  EXPECT_EQ(match(numbers(12)), 12);
  EXPECT_EQ(match(numbers(11)), 8) << "given back, and not yet needed by anybody";
  // The blocks that were given back first go first: the run of 4 is lost, that of 8 is not.
  std::vector<BlockRef> others;
  for (int i = 0; i < 12; ++i) others.push_back(*pools_[1].allocate());
  EXPECT_EQ(match(numbers(11)), 8);
  EXPECT_EQ(match(numbers(7)), 0);
}

TEST_F(WindowedPrefixCache, ForgetsAlsoWhatWasGivenBack) {
  compute(numbers(16), 16);
  cache_->forget(chain_, tables_);
  for (int count = 1; count <= 16; ++count) EXPECT_EQ(match(numbers(count)), 0);
  for (BlockTable& table : tables_) table.clear();
  for (KvBlockPool& pool : pools_) {
    for (BlockId id = 0; id < pool.block_count(); ++id) EXPECT_FALSE(pool.labelled(id));
  }
}

TEST(BlockTable, SharesAndReleasesOnlyTheBlocksThatItHolds) {
  KvBlockPool pool(4, 2);
  BlockTable table(pool);
  for (int i = 0; i < 4; ++i) table.append(*pool.allocate());
  table.release_before(2);
  table.release_before(1);
  EXPECT_EQ(pool.free_count(), 2);
  BlockTable other = table.share();
  EXPECT_EQ(other.held_count(), 2);
  EXPECT_EQ(pool.holder_count(table.id(3)), 2);
  EXPECT_EQ(table.id(1), kNoBlock);
  table.truncate(1);
  EXPECT_EQ(table.size(), 1);
  EXPECT_EQ(table.held_count(), 0);
  other.release_before(9);
  EXPECT_EQ(other.held_count(), 0);
  EXPECT_EQ(pool.free_count(), 4);
}

}  // namespace
}  // namespace kun
