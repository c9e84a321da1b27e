#include "executor/late_entries.h"

#include <gtest/gtest.h>

#include <map>

namespace kun {
namespace {

constexpr int kWidth = 2;

// Keeps what it is told to write: [slot] token and the first number of the state before it.
class Notes final : public Model {
 public:
  struct Entry {
    Token token;
    float before;
    bool operator==(const Entry&) const = default;
  };

  int vocabulary_size() const override { return 1; }
  int hidden_size() const override { return kWidth; }
  int context_length_max() const override { return 1; }
  const KvLayout& kv_layout() const override { return layout_; }
  int guess_group() const override { return 0; }
  Status forward(const ForwardBatch&, const KvStorage&, TensorView) const override { return {}; }
  Status logits(ConstTensorView, TensorView) const override { return {}; }
  void make_guess_entries(const GuessBatch& batch, const KvStorage&) const override {
    ++writes;
    for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      entries[batch.group.slots[i]] = {batch.tokens[i], batch.before.row<float>(row)[0]};
    }
  }

  mutable int writes = 0;
  mutable std::map<std::int32_t, Entry> entries;

 private:
  KvLayout layout_;
};

// Slices of (slot of the first token, tokens); states are those of the tokens, plus a half.
struct Step {
  explicit Step(const std::vector<std::pair<std::int32_t, std::vector<Token>>>& slices) {
    batch.groups.resize(1);
    for (const auto& [slot, tokens] : slices) {
      const auto count = static_cast<std::int32_t>(tokens.size());
      const auto first = static_cast<std::int32_t>(batch.tokens.size());
      batch.groups[0].slices.push_back({first, count, slot, {}});
      before.insert(before.end(), kWidth, static_cast<float>(tokens[0] - 1) + 0.5F);
      for (std::int32_t i = 0; i < count; ++i) {
        const Token token = tokens[static_cast<std::size_t>(i)];
        batch.kept_rows.push_back(first + i);
        batch.tokens.push_back(token);
        batch.positions.push_back(slot + i);
        batch.groups[0].slots.push_back(slot + i);
        kept.insert(kept.end(), kWidth, static_cast<float>(token) + 0.5F);
      }
      batch.before_known.push_back(true);
    }
    batch.before = view(before);
  }
  static ConstTensorView view(const std::vector<float>& values) {
    return {reinterpret_cast<const std::byte*>(values.data()),
            DType::kF32,
            {std::ssize(values) / kWidth, kWidth}};
  }

  ForwardBatch batch;
  std::vector<float> before;
  std::vector<float> kept;
};

void add(LateEntries& entries, const Step& step) {
  ASSERT_TRUE(LateEntries::may_wait(step.batch));
  entries.add(step.batch, Step::view(step.kept));
}

TEST(LateEntries, WritesManyTogetherEachWithTheStateBeforeIt) {
  const Notes model;
  LateEntries entries(model);
  add(entries, Step({{10, {31}}, {50, {71, 72}}}));
  add(entries, Step({{11, {32}}, {52, {73}}}));
  EXPECT_EQ(model.writes, 0);
  entries.write({});
  EXPECT_EQ(model.writes, 1);
  const std::map<std::int32_t, Notes::Entry> expected{{10, {31, 30.5F}},
                                                      {11, {32, 31.5F}},
                                                      {50, {71, 70.5F}},
                                                      {51, {72, 71.5F}},
                                                      {52, {73, 72.5F}}};
  EXPECT_EQ(model.entries, expected);
  EXPECT_TRUE(entries.empty());
  entries.write({});
  EXPECT_EQ(model.writes, 1);
}

TEST(LateEntries, TakesTheLastOneOfAPlace) {
  const Notes model;
  LateEntries entries(model);
  add(entries, Step({{5, {41, 90, 91}}}));  // two drafts, wrong
  add(entries, Step({{6, {42}}}));
  entries.write({});
  EXPECT_EQ(model.entries[5], (Notes::Entry{41, 40.5F}));
  EXPECT_EQ(model.entries[6], (Notes::Entry{42, 41.5F}));
  EXPECT_EQ(model.entries[7], (Notes::Entry{91, 90.5F}));  // never read: no token got there
}

TEST(LateEntries, HasABound) {
  const Notes model;
  LateEntries entries(model);
  for (std::int32_t i = 0; i < LateEntries::kRowsMax; ++i) {
    ASSERT_TRUE(entries.has_room(1));
    add(entries, Step({{i, {100 + i}}}));
  }
  EXPECT_FALSE(entries.has_room(1));
  const Step crowd({{0, std::vector<Token>(LateEntries::kRowsMax + 1, 3)}});
  EXPECT_FALSE(LateEntries::may_wait(crowd.batch));
}

TEST(LateEntries, LeavesOutWhatIsNotKnown) {
  Step prompt({{8, {1, 2, 3}}});
  prompt.batch.kept_rows = {2};  // of a prompt the last state alone is kept
  EXPECT_FALSE(LateEntries::may_wait(prompt.batch));
  Step forgotten({{8, {4}}, {16, {5}}});
  forgotten.batch.before_known[1] = false;
  EXPECT_FALSE(LateEntries::may_wait(forgotten.batch));
}

}  // namespace
}  // namespace kun
