#include "executor/memory_budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace kun {
namespace {

namespace fs = std::filesystem;

// A fake / with the files a test writes.
class MemoryBudgetTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) /
            ("kun_memory_" + std::to_string(getpid()) + "_" + info->name());
    write("proc/meminfo",
          "MemTotal:       16384000 kB\nMemFree:         1000000 kB\n"
          "MemAvailable:    8192000 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  MemoryBudget read() {
    const auto budget = read_memory_budget(root_);
    EXPECT_TRUE(budget.has_value());
    return budget.has_value() ? *budget : MemoryBudget{};
  }

  fs::path root_;
};

TEST_F(MemoryBudgetTest, IsTheMachinesWithoutControlGroups) {
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total_bytes, 16384000LL * 1024);
  EXPECT_EQ(budget.available_bytes, 8192000LL * 1024);
  EXPECT_EQ(budget.limited_by, "the machine");
}

TEST_F(MemoryBudgetTest, HonoursAVersion2LimitAndCountsDroppablePageCache) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "2000000000\n");
  write("sys/fs/cgroup/memory.current", "1500000000\n");
  write("sys/fs/cgroup/memory.stat", "anon 5\nfile 9\ninactive_file 400000000\n");
  const MemoryBudget budget = read();
  EXPECT_EQ(budget.total_bytes, 2000000000);
  EXPECT_EQ(budget.available_bytes, 900000000);
  EXPECT_EQ(budget.limited_by, (root_ / "sys/fs/cgroup").string());
}

TEST_F(MemoryBudgetTest, TheTightestAncestorWins) {
  write("proc/self/cgroup", "0::/a/b\n");
  write("sys/fs/cgroup/a/b/memory.max", "max\n");
  write("sys/fs/cgroup/a/b/memory.current", "100\n");
  write("sys/fs/cgroup/a/memory.max", "3000\n");
  write("sys/fs/cgroup/a/memory.current", "1000\n");
  write("sys/fs/cgroup/memory.max", "9000\n");
  write("sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(read().available_bytes, 2000);
  EXPECT_EQ(read().total_bytes, 3000);
}

TEST_F(MemoryBudgetTest, UsesTheMountsRootWhereTheGroupsFolderIsHidden) {
  write("proc/self/cgroup", "0::/system.slice/docker-1234.scope\n");
  write("sys/fs/cgroup/memory.max", "5000\n");
  write("sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(read().available_bytes, 4000);
}

TEST_F(MemoryBudgetTest, HonoursAVersion1Limit) {
  write("proc/self/cgroup", "12:cpu,cpuacct:/x\n5:memory:/docker/1\n1:name=systemd:/x\n");
  write("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "600000\n");
  write("sys/fs/cgroup/memory/docker/1/memory.stat",
        "inactive_file 7\ntotal_inactive_file 100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
  EXPECT_EQ(read().available_bytes, 500000);
}

TEST_F(MemoryBudgetTest, UsageAboveTheLimitLeavesNothing) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "1000\n");
  write("sys/fs/cgroup/memory.current", "5000\n");
  EXPECT_EQ(read().available_bytes, 0);
}

TEST_F(MemoryBudgetTest, IgnoresGarbage) {
  write("proc/self/cgroup", "::::\n\nnonsense\n0::/../../..\n5:memory\n");
  write("sys/fs/cgroup/memory.max", "-12\n");
  EXPECT_EQ(read().available_bytes, 8192000LL * 1024);
}

TEST_F(MemoryBudgetTest, SaysSoWhenTheMachineDoesNotTell) {
  write("proc/meminfo", "MemTotal: lots\n");
  const auto budget = read_memory_budget(root_);
  ASSERT_FALSE(budget.has_value());
  EXPECT_NE(budget.error().message().find("proc/meminfo"), std::string::npos);
}

TEST(MemoryBudget, TellsSomethingPlausibleAboutThisMachine) {
  const auto budget = read_memory_budget();
  ASSERT_TRUE(budget.has_value());
  EXPECT_GT(budget->available_bytes, 1 << 20);
  EXPECT_LE(budget->available_bytes, budget->total_bytes);
}

KvLayout layout_of(std::initializer_list<int> block_lengths) {
  KvLayout layout;
  for (const int length : block_lengths) {
    layout.groups.push_back({length, {0, 1}, {{"key", DType::kF32, 8}, {"value", DType::kF32, 8}}});
  }
  return layout;
}

TEST(BlockCountFor, FillsTheBudgetAndNeverExceedsIt) {
  const KvLayout one = layout_of({16});  // 2048 bytes a block
  EXPECT_EQ(block_count_for(one, 2048 * 10), std::vector{10});
  EXPECT_EQ(block_count_for(one, 2048 * 11 - 1), std::vector{10});
  EXPECT_EQ(block_count_for(one, 2047), std::vector{0});
  EXPECT_EQ(block_count_for(one, 0), std::vector{0});
  EXPECT_EQ(block_count_for(one, -5), std::vector{0});
}

TEST(BlockCountFor, GivesEveryGroupTheSameNumberOfTokens) {
  const KvLayout two = layout_of({16, 64});
  const std::vector<int> counts = block_count_for(two, 1 << 20);
  EXPECT_EQ(counts, (std::vector{256, 64}));
  EXPECT_EQ(block_count_for(two, 2048 + 8191), (std::vector{0, 0}));
}

TEST(BlockCountFor, GivesAGroupWithAWindowAShareThatHoldsAWholeStep) {
  KvLayout layout = layout_of({16, 16});
  layout.groups[1].window = 32;
  EXPECT_EQ(block_count_for(layout, 2048 * 100), (std::vector{50, 50}));
  EXPECT_EQ(block_count_for(layout, 2048 * 100, 64), (std::vector{80, 20}));
  EXPECT_EQ(block_count_for(layout, 2048 * 100, 512), (std::vector{64, 36}));
  EXPECT_EQ(block_count_for(layout, 2048 * 20, 512), (std::vector{10, 10}));
}

TEST(BlockCountFor, KeepsSlotsWithinTheirNumbers) {
  const KvLayout one = layout_of({16});
  const std::vector<int> counts = block_count_for(one, std::int64_t{1} << 60);
  EXPECT_EQ(counts, std::vector{std::numeric_limits<std::int32_t>::max() / 16});
}

}  // namespace
}  // namespace kun
