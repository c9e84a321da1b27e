#include "backends/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace kun {
namespace {

TEST(ThreadPool, RunsEveryTileOnce) {
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (const std::int64_t tiles : {0, 1, 2, 7, 1000}) {
      std::vector<int> seen(static_cast<std::size_t>(tiles), 0);
      pool.run(tiles, [&](std::int64_t tile, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++seen[static_cast<std::size_t>(tile)];
      });
      for (const int count : seen) ASSERT_EQ(count, 1);
    }
  }
}

TEST(ThreadPool, MakesWorkersWritesVisibleToTheCaller) {
  ThreadPool pool(2);
  std::vector<std::int64_t> values(64);
  for (std::int64_t round = 0; round < 2000; ++round) {
    pool.run(64, [&](std::int64_t tile, int) { values[static_cast<std::size_t>(tile)] = round; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), std::int64_t{0}), 64 * round);
  }
}

TEST(ThreadPool, CountsTilesAsProgress) {
  ThreadPool pool(2);
  pool.run(10, [](std::int64_t, int) {});
  pool.run(1, [](std::int64_t, int) {});
  EXPECT_EQ(pool.progress(), 11U);
}

TEST(ThreadPool, WakesWorkersThatFellAsleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // Each tile waits for the other, so this ends only if the worker really comes.
    std::atomic<int> arrived{0};
    pool.run(2, [&](std::int64_t, int) {
      ++arrived;
      while (arrived.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(arrived.load(), 2);
  }
}

TEST(ThreadPool, FinishesWithFarMoreThreadsThanProcessors) {
  ThreadPool pool(16);
  std::atomic<std::int64_t> sum{0};
  for (int round = 0; round < 200; ++round) {
    pool.run(32, [&](std::int64_t tile, int) { sum += tile; });
  }
  EXPECT_EQ(sum.load(), 200 * 31 * 16);
}

TEST(ThreadPool, PinsItsWorkers) {
  const std::vector<int> cpus{0, 0};
  ThreadPool pool(2, cpus);
  std::atomic<int> done{0};
  pool.run(100, [&](std::int64_t, int) { ++done; });
  EXPECT_EQ(done.load(), 100);
}

}  // namespace
}  // namespace kun
