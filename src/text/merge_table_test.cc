// Claims about merging: whatever the length, the result is that of the plain definition.
#include "text/merge_table.h"

#include <gtest/gtest.h>

#include <random>

namespace kun {
namespace {

// The definition, word by word: look for the lowest rank, merge its leftmost pair, begin again.
std::vector<Token> merged_by_definition(const MergeTable& table, std::vector<Token> symbols) {
  while (true) {
    std::size_t best = 0;
    MergeTable::Merge merge;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const MergeTable::Merge found = table.find(symbols[i], symbols[i + 1]);
      if (found.rank < merge.rank) {
        merge = found;
        best = i;
      }
    }
    if (merge.rank == MergeTable::kNoMerge) return symbols;
    symbols[best] = merge.result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(MergeTable, MergesAsTheDefinitionSaysAtEveryLength) {
  std::mt19937 generator(7);
  const auto random = [&generator] { return static_cast<std::uint32_t>(generator()); };
  MergeScratch scratch;
  for (int round = 0; round < 400; ++round) {
    const std::uint32_t letters = 2 + random() % 4;
    const std::uint32_t merges = 1 + random() % 40;
    MergeTable table(merges);
    for (std::uint32_t i = 0; i < merges; ++i) {
      // Ranks repeat, as scores do, and results may merge again with a lower rank.
      const std::uint32_t known = letters + i;
      table.add(static_cast<Token>(random() % known), static_cast<Token>(random() % known),
                {random() % 24, static_cast<Token>(known)});
    }
    std::vector<Token> symbols(random() % 200);
    for (Token& symbol : symbols) symbol = static_cast<Token>(random() % letters);
    const std::vector<Token> expected = merged_by_definition(table, symbols);
    table.merge(symbols, scratch);
    ASSERT_EQ(symbols, expected) << "round " << round;
  }
}

TEST(MergeTable, KeepsTheLowestRankOfAPair) {
  MergeTable table(3);
  table.add(1, 2, {5, 10});
  table.add(1, 2, {3, 11});
  table.add(1, 2, {4, 12});
  EXPECT_EQ(table.find(1, 2).result, 11);
  EXPECT_EQ(table.find(2, 1).rank, MergeTable::kNoMerge);
  EXPECT_EQ(table.count(), 1U);
}

}  // namespace
}  // namespace kun
