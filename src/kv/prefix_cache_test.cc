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
    cache_ = std::make_unique<PrefixCache>(pools_, kKey);
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

}  // namespace
}  // namespace kun
