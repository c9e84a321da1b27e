#include "executor/hidden_tails.h"

#include <gtest/gtest.h>

namespace kun {
namespace {

constexpr int kWidth = 3;

PlanSlice slice(SequenceId id, std::uint32_t choice, int first, int count, int drafts) {
  PlanSlice made;
  made.sequence = id;
  made.choice = choice;
  made.first_position = first;
  made.tokens.assign(static_cast<std::size_t>(count), 1);
  made.draft_count = drafts;
  for (int left = drafts; left >= 0; --left) made.wanted.push_back(count - 1 - left);
  return made;
}

// A state that tells where it comes from.
float state_of(SequenceId id, std::uint32_t choice, int position) {
  return static_cast<float>(id * 1000 + choice * 100 + static_cast<std::uint64_t>(position));
}

// A step: what was known before its slices, then its states are kept.
ForwardBatch step(HiddenTails& tails, const std::vector<PlanSlice>& slices) {
  const BatchPlan plan{.step = 1, .block_copies = {}, .slices = slices};
  ForwardBatch batch;
  tails.prepare(plan, batch);
  std::vector<float> kept;
  std::int32_t row = 0;
  std::size_t next = 0;
  for (const PlanSlice& one : slices) {
    for (std::size_t i = 0; i < one.tokens.size(); ++i, ++row) {
      if (next == batch.kept_rows.size() || batch.kept_rows[next] != row) continue;
      ++next;
      const float state =
          state_of(one.sequence, one.choice, one.first_position + static_cast<int>(i));
      kept.insert(kept.end(), kWidth, state);
    }
  }
  EXPECT_EQ(next, batch.kept_rows.size()) << "rows are not ascending";
  tails.keep(plan, ConstTensorView(reinterpret_cast<const std::byte*>(kept.data()), DType::kF32,
                                   {std::ssize(batch.kept_rows), kWidth}));
  return batch;
}

TEST(HiddenTails, KeepWhateverTokenMayTurnOutToBeTheLast) {
  HiddenTails tails(kWidth);
  ForwardBatch batch = step(tails, {slice(1, 0, 0, 5, 0), slice(2, 0, 0, 7, 0)});
  EXPECT_EQ(batch.before_known, (std::vector<bool>{false, false}));
  EXPECT_EQ(batch.kept_rows, (std::vector<std::int32_t>{4, 11}));
  batch = step(tails, {slice(1, 0, 5, 4, 3), slice(2, 0, 7, 1, 0)});
  EXPECT_EQ(batch.before_known, (std::vector<bool>{true, true}));
  EXPECT_EQ(batch.before.row<float>(0)[0], state_of(1, 0, 4));
  EXPECT_EQ(batch.before.row<float>(1)[kWidth - 1], state_of(2, 0, 6));
  for (int position = 5; position <= 8; ++position) {
    ASSERT_NE(tails.find(1, 0, position), nullptr);
    EXPECT_EQ(tails.find(1, 0, position)[0], state_of(1, 0, position));
  }
  EXPECT_EQ(tails.find(1, 0, 4), nullptr);
  EXPECT_EQ(tails.find(1, 0, 9), nullptr);
  EXPECT_EQ(tails.find(3, 0, 5), nullptr);
}

TEST(HiddenTails, AreEveryChoicesWhereTheyPartAndEachOnesOwnBehind) {
  HiddenTails tails(kWidth);
  PlanSlice prompt = slice(1, 0, 0, 6, 0);
  prompt.wanted = {5, 5, 5};
  step(tails, {prompt});
  ASSERT_NE(tails.find(1, 2, 5), nullptr);
  EXPECT_EQ(tails.find(1, 2, 5)[0], state_of(1, 0, 5));
  const ForwardBatch batch = step(tails, {slice(1, 0, 6, 1, 0), slice(1, 2, 6, 1, 0)});
  EXPECT_EQ(batch.before_known, (std::vector<bool>{true, true}));
  EXPECT_EQ(tails.find(1, 2, 6)[0], state_of(1, 2, 6));
  EXPECT_EQ(tails.find(1, 1, 6), nullptr);
  EXPECT_NE(tails.find(1, 1, 5), nullptr);  // it has not had a step yet
}

TEST(HiddenTails, AreForgottenWhenNobodyUsesThem) {
  HiddenTails tails(kWidth);
  step(tails, {slice(1, 0, 0, 1, 0)});
  for (int i = 0; i < 600; ++i) step(tails, {slice(2, 0, i, 1, 0)});
  EXPECT_EQ(tails.find(1, 0, 0), nullptr);
  EXPECT_NE(tails.find(2, 0, 599), nullptr);
}

}  // namespace
}  // namespace kun
