// Many seeds of simulation.h. A failing seed is run again alone with
//   KUN_SIMULATION_SEED=<seed> simulation_tests --gtest_filter='Simulation.*'
// and KUN_SIMULATION_COUNT=<count> plays that many seeds instead of the usual number.
#include "simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace kun {
namespace {

constexpr int kArrivalSteps = 250;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(Simulation, EveryTokenEqualsThatOfAModelWithoutCache) {
  const std::uint64_t only = number_from("KUN_SIMULATION_SEED", 0);
  const std::uint64_t first = only != 0 ? only : 1;
  const std::uint64_t last = only != 0 ? only : number_from("KUN_SIMULATION_COUNT", 200);
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t hits = 0;
  std::uint64_t drafts = 0;
  std::uint64_t accepted = 0;
  std::int64_t passed = 0;
  std::map<Scheduler::Finish, int> ends;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    Simulation simulation(seed);
    const std::string problem = simulation.run(kArrivalSteps);
    ASSERT_EQ(problem, "") << "replay: KUN_SIMULATION_SEED=" << seed
                           << " simulation_tests --gtest_filter='Simulation.*'";
    steps += simulation.step_count();
    tokens += simulation.token_count();
    preemptions += simulation.stats().preemption_count;
    hits += simulation.stats().prefix_hit_token_count;
    drafts += simulation.stats().draft_token_count;
    accepted += simulation.stats().accepted_token_count;
    passed += simulation.passed_count();
    for (int f = 1; f <= static_cast<int>(Scheduler::Finish::kFailed); ++f) {
      const auto finish = static_cast<Scheduler::Finish>(f);
      ends[finish] += simulation.ended_count(finish);
    }
  }
  std::printf(
      "%lld steps, %lld tokens, %llu preemptions, %llu prefix hits, %llu of %llu drafts right\n",
      static_cast<long long>(steps), static_cast<long long>(tokens),
      static_cast<unsigned long long>(preemptions), static_cast<unsigned long long>(hits),
      static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(drafts));
  if (only != 0) return;
  // The load must really have been unkind.
  EXPECT_GT(preemptions, 100U);
  EXPECT_GT(hits, 1000U);
  EXPECT_GT(drafts, 10'000U);
  EXPECT_GT(passed, 10'000);
  EXPECT_GT(accepted, drafts / 5);
  EXPECT_LT(accepted, drafts * 4 / 5);
  for (const auto& [finish, count] : ends) {
    using enum Scheduler::Finish;
    if (finish == kConstraintEnd || finish == kNoToken) continue;  // nobody has a grammar here
    EXPECT_GT(count, 10) << static_cast<int>(finish);
  }
}

TEST(Simulation, EqualSeedsGiveEqualPlans) {
  for (std::uint64_t seed = 1001; seed < 1011; ++seed) {
    Simulation one(seed);
    Simulation other(seed);
    ASSERT_EQ(one.run(kArrivalSteps), "");
    ASSERT_EQ(other.run(kArrivalSteps), "");
    EXPECT_EQ(one.digest(), other.digest());
    EXPECT_EQ(one.trace(), other.trace());
  }
}

}  // namespace
}  // namespace kun
