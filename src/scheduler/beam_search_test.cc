// Beam search on candidates that are written in the test.
#include "scheduler/beam_search.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kun {
namespace {

constexpr Token kEnd = 99;

Beam root(std::vector<TokenLogprob> candidates) {
  Beam beam;
  beam.answered = true;
  beam.candidates = std::move(candidates);
  return beam;
}

std::vector<BeamSearch::Continuation> step(BeamSearch& search, std::vector<Beam> beams) {
  std::vector<const Beam*> all;
  for (const Beam& beam : beams) all.push_back(&beam);
  return search.select(all);
}

std::vector<Token> tokens_of(const std::vector<SampledToken>& output) {
  std::vector<Token> tokens;
  for (const SampledToken& token : output) tokens.push_back(token.token);
  return tokens;
}

BeamSearch search_of(int width, double penalty = 1.0, int count_max = 10,
                     EarlyStopping stopping = EarlyStopping::kWhenSettled) {
  return BeamSearch({width, penalty, stopping}, {kEnd}, count_max);
}

TEST(BeamSearch, EqualSumsGoOnByParentAndRank) {
  BeamSearch search = search_of(3);
  std::vector<Beam> beams;
  beams.push_back(root({{5, -1.0F}, {2, -1.0F}}));
  beams.push_back(root({{1, -1.0F}, {3, -0.5F}}));
  const auto next = step(search, std::move(beams));
  ASSERT_EQ(next.size(), 3U);
  EXPECT_EQ(next[0].parent, 1U);
  EXPECT_EQ(tokens_of(next[0].beam.output), std::vector<Token>{3});
  EXPECT_EQ(tokens_of(next[1].beam.output), std::vector<Token>{5});
  EXPECT_EQ(tokens_of(next[2].beam.output), std::vector<Token>{2});
  EXPECT_EQ(next[1].beam.logprob_sum, -1.0);
}

TEST(BeamSearch, EndsCountOnlyAmongTheBest) {
  BeamSearch search = search_of(2);
  const auto next = [&] {
    std::vector<Beam> beams;
    beams.push_back(root({{1, -0.1F}, {kEnd, -0.2F}, {2, -0.3F}, {3, -0.4F}}));
    beams.push_back(root({{kEnd, -5.0F}}));
    return step(search, std::move(beams));
  }();
  EXPECT_EQ(next.size(), 2U);
  const std::vector<Hypothesis> best = search.take_best();
  ASSERT_EQ(best.size(), 1U) << "the second end is behind two that go on";
  EXPECT_EQ(best[0].end, Hypothesis::End::kEndToken);
  EXPECT_EQ(best[0].score, double{-0.2F});
}

TEST(BeamSearch, AsksForEnoughCandidates) {
  EXPECT_EQ(search_of(4).candidate_count(), 8);
  EXPECT_EQ(BeamSearch({1, 1.0, EarlyStopping::kWhenSettled}, {1, 2, 3}, 5).candidate_count(), 4);
}

// A hypothesis of one token at -1, and a beam of two at -1.5: which is the better one depends on
// the penalty, and so does whether there is hope for the beam.
TEST(BeamSearch, IsOverWhenNoBeamCanBecomeOneOfTheBest) {
  const auto rounds = [](double penalty, EarlyStopping stopping) {
    BeamSearch search = search_of(1, penalty, 4, stopping);
    std::vector<Beam> beams;
    beams.push_back(root({{kEnd, -1.0F}, {1, -1.25F}}));
    int count = 1;
    for (auto next = step(search, std::move(beams)); !next.empty(); ++count) {
      beams.clear();
      beams.push_back(std::move(next[0].beam));
      beams[0].answered = true;
      beams[0].candidates = {{1, -0.25F}};
      next = step(search, std::move(beams));
    }
    return std::pair(count, search.take_best().front().tokens.size());
  };
  using Result = std::pair<int, std::size_t>;
  EXPECT_EQ(rounds(1.0, EarlyStopping::kWhenEnough), Result(1, 1));
  EXPECT_EQ(rounds(1.0, EarlyStopping::kWhenSettled), Result(1, 1)) << "-1.25 is below -1 now";
  EXPECT_EQ(rounds(1.0, EarlyStopping::kNever), Result(4, 4)) << "-2 / 4 is above -1";
  EXPECT_EQ(rounds(0.0, EarlyStopping::kNever), Result(1, 1)) << "sums only fall";
}

TEST(BeamSearch, ScoresBySumOverLengthToThePenalty) {
  BeamSearch search = search_of(2, 2.0, 2);
  std::vector<Beam> beams;
  beams.push_back(root({{kEnd, -1.0F}, {1, -1.5F}}));
  auto next = step(search, std::move(beams));
  ASSERT_EQ(next.size(), 1U);
  beams.clear();
  beams.push_back(std::move(next[0].beam));
  beams[0].answered = true;
  beams[0].candidates = {{2, -0.5F}, {3, -1.0F}};
  EXPECT_TRUE(step(search, std::move(beams)).empty()) << "as long as it may be";
  const std::vector<Hypothesis> best = search.take_best();
  ASSERT_EQ(best.size(), 2U);
  EXPECT_EQ(tokens_of(best[0].tokens), (std::vector<Token>{1, 2}));
  EXPECT_DOUBLE_EQ(best[0].score, -2.0 / 4.0);
  EXPECT_EQ(best[0].end, Hypothesis::End::kLength);
  EXPECT_DOUBLE_EQ(best[1].score, -2.5 / 4.0) << "the end at -1 is the worst of three";
}

TEST(BeamSearch, WatchesMayEndAHypothesis) {
  // Over with the third token that it sees.
  class Third final : public OutputWatch {
   public:
    bool take(Token) override { return ++count_ == 3; }
    std::unique_ptr<OutputWatch> clone() const override { return std::make_unique<Third>(*this); }

   private:
    int count_ = 0;
  };
  BeamSearch search = search_of(1);
  std::vector<Beam> beams;
  beams.push_back(root({{1, -1.0F}}));
  beams[0].watch = std::make_unique<Third>();
  for (int round = 0; round < 2; ++round) {
    auto next = step(search, std::move(beams));
    ASSERT_EQ(next.size(), 1U);
    beams.clear();
    beams.push_back(std::move(next[0].beam));
    beams[0].answered = true;
    beams[0].candidates = {{1, -1.0F}};
  }
  EXPECT_TRUE(step(search, std::move(beams)).empty());
  const std::vector<Hypothesis> best = search.take_best();
  ASSERT_EQ(best.size(), 1U);
  EXPECT_EQ(best[0].end, Hypothesis::End::kWatch);
  EXPECT_EQ(best[0].tokens.size(), 3U);
}

TEST(BeamSearch, AllBeamsMayDie) {
  BeamSearch search = search_of(2);
  std::vector<Beam> beams;
  beams.push_back(root({}));
  EXPECT_TRUE(step(search, std::move(beams)).empty());
  EXPECT_TRUE(search.take_best().empty());
}

}  // namespace
}  // namespace kun
