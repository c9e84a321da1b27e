// Traces of simulations must replay; damaged ones must not. A trace of a real server is checked
// with
//   KUN_TRACE=<file> simulation_tests --gtest_filter='Trace.*'
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "simulation.h"
#include "trace_checker.h"

namespace kun {
namespace {

constexpr const char* kHeader =
    R"({"kun_trace":1,"tokens_per_step_max":8,"groups":[{"tokens_per_block":4,"block_count":4}]})";

std::string check(const std::vector<std::string>& lines) {
  TraceChecker checker;
  for (const std::string& line : lines) {
    if (std::string broken = checker.take(line); !broken.empty()) return broken;
  }
  return {};
}

std::string slice(int sequence, int first, int count, const std::string& blocks) {
  return fmt::format(
      R"({{"sequence":{},"choice":0,"first":{},"count":{},"wanted":1,"blocks":[[{}]]}})", sequence,
      first, count, blocks);
}

std::string step(int number, const std::string& slices, const std::string& copies = "") {
  return fmt::format(
      R"({{"step":{},"now":0,"copies":[{}],"slices":[{}],"status":"ok","results":[]}})", number,
      copies, slices);
}

TEST(Trace, OfEverySimulationReplays) {
  for (std::uint64_t seed = 2001; seed <= 2040; ++seed) {
    Simulation simulation(seed);
    ASSERT_EQ(simulation.run(200), "");
    ASSERT_EQ(check(simulation.trace()), "") << "seed " << seed;
  }
}

TEST(Trace, ReplaysAFileGivenByHand) {
  const char* path = std::getenv("KUN_TRACE");
  if (path == nullptr) GTEST_SKIP() << "KUN_TRACE names no trace to check";
  std::ifstream file(path);
  ASSERT_TRUE(file.is_open()) << path;
  TraceChecker checker;
  for (std::string line; std::getline(file, line);) ASSERT_EQ(checker.take(line), "");
  std::printf("%d steps keep the promises\n", checker.step_count());
}

TEST(Trace, OfASoundScheduleReplays) {
  EXPECT_EQ(check({kHeader, step(1, slice(1, 0, 5, "0,1")), step(2, slice(1, 5, 1, "0,1")),
                   step(3, slice(2, 4, 2, "0,2") + "," + slice(1, 6, 1, "0,1"))}),
            "");
  EXPECT_EQ(
      check({kHeader, step(1, slice(1, 0, 5, "0,1")), step(2, slice(1, 5, 1, "0,2"), "[0,1,2]")}),
      "");
}

TEST(Trace, WithTooManyTokensIsRefused) {
  EXPECT_NE(check({kHeader, step(1, slice(1, 0, 9, "0,1,2"))}), "");
}

TEST(Trace, WithASharedWriterIsRefused) {
  EXPECT_NE(check({kHeader, step(1, slice(1, 0, 2, "0") + "," + slice(2, 0, 2, "0"))}), "");
}

TEST(Trace, WithAGapIsRefused) {
  EXPECT_NE(check({kHeader, step(1, slice(1, 0, 2, "0")), step(2, slice(1, 3, 1, "0"))}), "");
}

TEST(Trace, WithAMissingCopyIsRefused) {
  EXPECT_NE(check({kHeader, step(1, slice(1, 0, 5, "0,1")), step(2, slice(1, 5, 1, "0,2"))}), "");
}

TEST(Trace, WithStepsBackwardsUnknownBlocksOrRubbishIsRefused) {
  EXPECT_NE(check({kHeader, step(2, slice(1, 0, 2, "0")), step(1, slice(1, 2, 1, "0"))}), "");
  EXPECT_NE(check({kHeader, step(1, slice(1, 0, 2, "4"))}), "");
  EXPECT_NE(check({kHeader, step(1, slice(1, 0, 2, "0"), "[0,0,9]")}), "");
  EXPECT_NE(check({kHeader, "{\"step\":1,"}), "");
  EXPECT_NE(check({"{}"}), "");
}

}  // namespace
}  // namespace kun
