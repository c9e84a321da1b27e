// The policy against a machine whose costs are known: it must find what pays, leave what does not,
// and come back when things change.
#include "scheduler/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace kun {
namespace {

constexpr int kDraftCountMax = 4;

// A machine with steps of fixed + per_token * tokens, and sequences whose drafts are right with
// given chances.
class Machine {
 public:
  Machine(double fixed_us, double per_token_us, double drafting_us = 0.0)
      : fixed_us_(fixed_us), per_token_us_(per_token_us), drafting_us_(drafting_us) {}

  // Runs that many steps; returns outputs per microsecond.
  double run(Speculation& speculation, const std::vector<double>& chances, int steps) {
    records_.resize(chances.size());
    std::vector<Acceptance*> sequences;
    for (Acceptance& record : records_) sequences.push_back(&record);
    double time = 0.0;
    double outputs = 0.0;
    drafted_ = 0;
    for (int step = 0; step < steps; ++step) {
      speculation.choose(sequences, counts_);
      int drafts = 0;
      for (const int count : counts_) drafts += count;
      const double drafting_us = std::exchange(next_drafting_us_, drafting_us_);
      speculation.observe_drafting(drafts, std::llround(drafting_us * drafts));
      const int tokens = static_cast<int>(chances.size()) + drafts;
      // 3 % of noise.
      const double noise = std::normal_distribution<double>(1.0, 0.03)(random_);
      const double step_us = (fixed_us_ + per_token_us_ * tokens) * noise;
      speculation.observe_step(tokens, std::llround(step_us));
      time += step_us + drafting_us_ * drafts;
      for (std::size_t i = 0; i < chances.size(); ++i) {
        int accepted = 0;
        while (accepted < counts_[i] && chance(chances[i])) ++accepted;
        if (counts_[i] > 0) speculation.observe_drafts(records_[i], counts_[i], accepted);
        outputs += 1 + accepted;
      }
      drafted_ += drafts;
    }
    return outputs / time;
  }

  // Outputs per microsecond with this many drafts for everybody, without noise.
  double fixed_rate(double chance, std::size_t sequences, int count) const {
    double yield = 1.0;
    for (int i = 1; i <= count; ++i) yield += std::pow(chance, i);
    const auto n = static_cast<double>(sequences);
    return n * yield / (fixed_us_ + n * (per_token_us_ * (1 + count) + drafting_us_ * count));
  }

  std::int64_t drafted() const { return drafted_; }

  void make_next_drafting_take(double us) { next_drafting_us_ = us; }
  // What comes next is said by others.
  void forget_sequences() { records_.clear(); }

 private:
  bool chance(double p) { return std::uniform_real_distribution<double>(0.0, 1.0)(random_) < p; }

  double fixed_us_;
  double per_token_us_;
  double drafting_us_;
  double next_drafting_us_ = drafting_us_;
  std::mt19937 random_{17};
  std::vector<Acceptance> records_;
  std::vector<int> counts_;
  std::int64_t drafted_ = 0;
};

TEST(Speculation, LosesLittleWhenDraftsAreNeverRight) {
  for (const std::size_t users : {1U, 4U, 32U}) {
    for (const double per_token : {100.0, 500.0, 2000.0}) {
      Speculation speculation(kDraftCountMax, true);
      Machine machine(5000.0, per_token);
      const double rate = machine.run(speculation, std::vector<double>(users, 0.0), 400);
      EXPECT_GT(rate, 0.975 * machine.fixed_rate(0.0, users, 0))
          << users << " users, " << per_token << " us per token";
    }
  }
}

TEST(Speculation, ComesCloseToTheBestFixedCountWhateverTheChance) {
  for (const std::size_t users : {1U, 8U, 64U}) {
    for (const double chance : {0.2, 0.5, 0.8, 0.95}) {
      for (const double per_token : {100.0, 1000.0}) {
        Speculation speculation(kDraftCountMax, true);
        Machine machine(5000.0, per_token);
        const double rate = machine.run(speculation, std::vector<double>(users, chance), 600);
        double best = 0.0;
        for (int count = 0; count <= kDraftCountMax; ++count) {
          best = std::max(best, machine.fixed_rate(chance, users, count));
        }
        EXPECT_GT(rate, 0.93 * best)
            << users << " users, chance " << chance << ", " << per_token << " us per token";
      }
    }
  }
}

TEST(Speculation, TurnsDraftsDownWhereTheBatchMakesTokensDear) {
  Speculation speculation(kDraftCountMax, true);
  // 64 tokens cost as much as the weights: a draft that is right every third time does not pay.
  Machine crowded(1000.0, 1000.0);
  crowded.run(speculation, std::vector<double>(64, 0.33), 200);
  crowded.run(speculation, std::vector<double>(64, 0.33), 200);
  EXPECT_LT(crowded.drafted(), 200 * 64 / 20);
}

TEST(Speculation, ComesBackWhenDraftsBecomeRight) {
  Speculation speculation(kDraftCountMax, true);
  Machine machine(5000.0, 300.0);
  machine.run(speculation, {0.0}, 300);
  machine.run(speculation, {0.0}, 100);
  EXPECT_LT(machine.drafted(), 15);
  machine.run(speculation, {0.95}, 60);
  machine.run(speculation, {0.95}, 100);
  EXPECT_GT(machine.drafted(), 300);
}

TEST(Speculation, TellsSequencesApart) {
  Speculation speculation(kDraftCountMax, true);
  Machine machine(3000.0, 300.0);
  machine.run(speculation, {0.95, 0.0, 0.95, 0.0}, 200);
  machine.run(speculation, {0.95, 0.0, 0.95, 0.0}, 200);
  // Two have four drafts a step, the others one now and then.
  EXPECT_GT(machine.drafted(), 2 * 4 * 200 * 8 / 10);
  EXPECT_LT(machine.drafted(), 2 * 4 * 200 + 2 * 200 / 8);
}

TEST(Speculation, CountsWhatDraftingItselfCosts) {
  Speculation speculation(kDraftCountMax, true);
  Machine dear(5000.0, 200.0, 4000.0);  // a draft model nearly as slow as the model
  const double rate = dear.run(speculation, {0.6}, 400);
  EXPECT_GT(rate, 0.95 * dear.fixed_rate(0.6, 1, 0));
}

TEST(Speculation, FindsWhatPaysThoughTheFirstDraftWasSlow) {
  Speculation speculation(1, true);
  Machine machine(5000.0, 200.0, 300.0);
  machine.make_next_drafting_take(100000.0);  // allocations, pages of weights never touched before
  machine.run(speculation, {0.8}, 100);
  const double rate = machine.run(speculation, {0.8}, 300);
  EXPECT_GT(rate, 0.93 * machine.fixed_rate(0.8, 1, 1));
}

// Sequences that end before it would be their turn to try.
TEST(Speculation, LearnsFromSequencesThatAreShort) {
  Speculation speculation(1, true);
  Machine machine(5000.0, 200.0, 1500.0);
  for (int i = 0; i < 30; ++i) {
    machine.forget_sequences();
    machine.run(speculation, {0.0}, 24);
  }
  std::int64_t drafted = 0;
  for (int i = 0; i < 60; ++i) {
    machine.forget_sequences();
    machine.run(speculation, {0.9}, 24);
    drafted = machine.drafted();
  }
  EXPECT_GT(drafted, 20);
}

TEST(Speculation, LetsEverySequenceTry) {
  Speculation speculation(1, true);
  Machine crowded(20000.0, 1000.0);
  std::vector<double> chances(16, 0.0);
  crowded.run(speculation, chances, 2000);
  chances[11] = 1.0;
  crowded.run(speculation, chances, 3000);
  EXPECT_GT(crowded.drafted(), 1000);  // nearly all of them this one's
}

TEST(Speculation, WithoutAdaptionAlwaysWantsAll) {
  Speculation speculation(3, false);
  Machine machine(100.0, 5000.0);
  machine.run(speculation, {0.0, 0.0}, 50);
  EXPECT_EQ(machine.drafted(), 50 * 2 * 3);
}

}  // namespace
}  // namespace kun
