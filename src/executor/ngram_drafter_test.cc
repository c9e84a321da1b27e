// The index against a search of the whole text, and the drafter on texts that repeat.
#include "executor/ngram_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

namespace kun {
namespace {

// The longest run of at least `shortest` and at most `longest` tokens that ends the text and stood
// before; the last such place. By looking everywhere.
int find_everywhere(std::span<const Token> text, int shortest, int longest) {
  const auto size = static_cast<int>(text.size());
  for (int length = std::min(longest, size - 1); length >= shortest; --length) {
    for (int end = size - 1; end >= length; --end) {
      const auto there =
          text.subspan(static_cast<std::size_t>(end - length), static_cast<std::size_t>(length));
      if (std::ranges::equal(there, text.last(static_cast<std::size_t>(length)))) return end;
    }
  }
  return -1;
}

TEST(NgramIndex, FindsWhatASearchOfTheWholeTextFinds) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const int shortest = 1 + static_cast<int>(random() % 4);
    const int longest = shortest + static_cast<int>(random() % 4);
    NgramIndex index(shortest);
    std::vector<Token> text;
    int found_count = 0;
    while (text.size() < 60) {  // shorter than what the index looks through
      for (std::size_t i = 0; i < 1 + random() % 5; ++i) {
        text.push_back(static_cast<Token>(random() % 4));
      }
      index.update(text);
      const int found = index.find(text, longest);
      EXPECT_EQ(found, find_everywhere(text, shortest, longest));
      found_count += found >= 0 ? 1 : 0;
    }
    EXPECT_GT(found_count, 0);
  }
}

// A thousand more tokens must not cost a thousand times more: the index is incremental, and a look
// is bounded even in a text of one token.
TEST(NgramIndex, CostsAsMuchInALongTextAsInAShortOne) {
  NgramIndex index(2);
  std::vector<Token> text(200'000, 7);
  const auto begin = std::chrono::steady_clock::now();
  std::int64_t sum = 0;
  for (std::size_t size = 100'000; size <= text.size(); ++size) {
    index.update(std::span(text).first(size));
    sum += index.find(std::span(text).first(size), 5);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(sum, 0);
  // Looking everywhere would be 1.5e10 comparisons, most of a minute.
  EXPECT_LT(seconds.count(), 5.0);
}

std::vector<Token> draft(NgramDrafter& drafter, const std::vector<Token>& text, int count,
                         SequenceId sequence = 1) {
  DraftWish wish;
  wish.sequence = sequence;
  wish.history = text;
  wish.count_max = count;
  std::vector<std::vector<Token>> drafts(1);
  EXPECT_TRUE(drafter.propose(std::span(&wish, 1), drafts).ok());
  return drafts.front();
}

TEST(NgramDrafter, SaysWhatFollowedBefore) {
  NgramDrafter drafter({.longest = 3, .shortest = 2});
  EXPECT_EQ(draft(drafter, {1, 2, 3, 4, 5, 6, 1, 2}, 3), (std::vector<Token>{3, 4, 5}));
  // The longer agreement wins over the later one.
  EXPECT_EQ(draft(drafter, {9, 1, 2, 7, 5, 1, 2, 8, 9, 1, 2}, 2, 2), (std::vector<Token>{7, 5}));
  // One token in common is not enough.
  EXPECT_TRUE(draft(drafter, {1, 2, 3, 4, 2}, 3, 3).empty());
  EXPECT_TRUE(draft(drafter, {1}, 3, 4).empty());
}

TEST(NgramDrafter, GoesOnInTextsWithAPeriod) {
  NgramDrafter drafter({.longest = 4, .shortest = 2});
  EXPECT_EQ(draft(drafter, {1, 2, 3, 1, 2, 3}, 7), (std::vector<Token>{1, 2, 3, 1, 2, 3, 1}));
}

TEST(NgramDrafter, KeepsSequencesAndChoicesApartAndForgetsThem) {
  NgramDrafter drafter({.longest = 2, .shortest = 2});
  EXPECT_EQ(draft(drafter, {1, 2, 3, 1, 2}, 1, 1), (std::vector<Token>{3}));
  EXPECT_EQ(draft(drafter, {1, 2, 4, 1, 2}, 1, 2), (std::vector<Token>{4}));
  EXPECT_EQ(draft(drafter, {1, 2, 3, 1, 2, 5, 1, 2}, 1, 1), (std::vector<Token>{5}));
  for (SequenceId id = 3; id < 10'000; ++id) {
    EXPECT_EQ(draft(drafter, {8, 9, 5, 8, 9}, 1, id), (std::vector<Token>{5}));
  }
  // Sequence 1 was forgotten, and is learnt anew.
  EXPECT_EQ(draft(drafter, {1, 2, 3, 1, 2, 5, 1, 2, 6, 6, 1, 2}, 1, 1), (std::vector<Token>{6}));
}

TEST(DraftMemory, HoldsNoMoreThanItsBoundAndWhatIsInUse) {
  DraftMemory<int> memory(10);
  DraftWish wish;
  for (int round = 0; round < 100; ++round) {
    memory.begin_round();
    for (int i = 0; i < 8; ++i) {
      wish.sequence = static_cast<SequenceId>(round * 8 + i);
      memory.at(wish) = round;
    }
    EXPECT_LE(memory.size(), 26U);
  }
  memory.begin_round();
  wish.sequence = 5000;
  memory.at(wish) = 1;
  while (memory.size() > 1) ASSERT_TRUE(memory.forget_oldest());
  EXPECT_FALSE(memory.forget_oldest());
  EXPECT_EQ(memory.at(wish), 1);
}

}  // namespace
}  // namespace kun
