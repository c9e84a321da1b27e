#include "base/memory_ledger.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace kun {
namespace {

TEST(MemoryLedger, WithoutALimitOnlyCounts) {
  MemoryLedger ledger;
  EXPECT_TRUE(ledger.try_hold(MemoryUse::kBodies, std::size_t{1} << 60U));
  EXPECT_EQ(ledger.held(MemoryUse::kBodies), std::size_t{1} << 60U);
  EXPECT_FALSE(ledger.over());
  EXPECT_FALSE(ledger.never(std::size_t{1} << 62U));
}

TEST(MemoryLedger, RefusesWhatAllUsesTogetherMayNotHold) {
  MemoryLedger ledger;
  ledger.set_limits(1000, 0);
  EXPECT_TRUE(ledger.try_hold(MemoryUse::kBodies, 600));
  EXPECT_FALSE(ledger.try_hold(MemoryUse::kRequests, 401));
  EXPECT_TRUE(ledger.try_hold(MemoryUse::kRequests, 400));
  EXPECT_EQ(ledger.held(), 1000U);
  EXPECT_EQ(ledger.refused_count(), 1U);
  EXPECT_FALSE(ledger.try_hold(MemoryUse::kRequests, ~std::size_t{0}));
  ledger.release(MemoryUse::kBodies, 600);
  EXPECT_TRUE(ledger.try_hold(MemoryUse::kGrammars, 600));
  EXPECT_TRUE(ledger.never(1001));
}

TEST(MemoryLedger, CountsWhatIsThereAnyway) {
  MemoryLedger ledger;
  ledger.set_limits(1000, 0);
  ledger.adjust(MemoryUse::kResponses, 0, 1500);
  EXPECT_TRUE(ledger.over());
  EXPECT_FALSE(ledger.try_hold(MemoryUse::kBodies, 1));
  ledger.adjust(MemoryUse::kResponses, 1500, 200);
  EXPECT_FALSE(ledger.over());
  EXPECT_EQ(ledger.held(MemoryUse::kResponses), 200U);
}

TEST(MemoryLedger, AHoldGivesBackOnceWhereverItWentMeanwhile) {
  MemoryLedger ledger;
  ledger.set_limits(100, 0);
  {
    ASSERT_TRUE(ledger.try_hold(MemoryUse::kRequests, 60));
    MemoryHold first(ledger, MemoryUse::kRequests, 60);
    MemoryHold second(std::move(first));
    MemoryHold third;
    third = std::move(second);
    EXPECT_EQ(ledger.held(), 60U);
  }
  EXPECT_EQ(ledger.held(), 0U);
}

TEST(MemoryLedger, LooksAtTheMemoryThatTheProcessReallyHas) {
  const std::size_t resident = resident_bytes();
  ASSERT_GT(resident, 0U);
  MemoryLedger ledger;
  ledger.set_limits(std::size_t{1} << 40U, resident + (64U << 20U));
  EXPECT_TRUE(ledger.try_hold(MemoryUse::kBodies, 8U << 20U));
  EXPECT_FALSE(ledger.try_hold(MemoryUse::kBodies, 128U << 20U));
  const std::vector<char> much(96U << 20U, 'x');
  EXPECT_FALSE(ledger.try_hold(MemoryUse::kBodies, 8U << 20U)) << much.size();
}

TEST(MemoryLedger, IsNeverExceededByThreadsThatTryAtOnce) {
  MemoryLedger ledger;
  ledger.set_limits(1000, 0);
  std::atomic<bool> exceeded = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        if (!ledger.try_hold(MemoryUse::kRequests, 300)) continue;
        const MemoryHold hold(ledger, MemoryUse::kRequests, 300);
        if (ledger.held(MemoryUse::kRequests) > 900) exceeded = true;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(ledger.held(), 0U);
}

}  // namespace
}  // namespace kun
