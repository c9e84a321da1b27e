#include "backends/cpu/cpu_count.h"

#include <gtest/gtest.h>

#include <fstream>

namespace kun {
namespace {

namespace fs = std::filesystem;

class CgroupQuota : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
            testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::optional<double> quota() { return cgroup_cpu_quota(root_ / "self", root_ / "fs"); }

  fs::path root_;
};

TEST_F(CgroupQuota, TakesTheTightestLevelOfV2) {
  write("self", "0::/a/b\n");
  write("fs/a/b/cpu.max", "400000 100000\n");
  write("fs/a/cpu.max", "150000 100000\n");
  write("fs/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CgroupQuota, ReadsV1WhereverItsControllerIsMounted) {
  write("self", "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n");
  write("fs/cpu,cpuacct/x/cpu.cfs_quota_us", "300000\n");
  write("fs/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 3.0);
}

TEST_F(CgroupQuota, FindsTheRootWhenTheNamedGroupIsHidden) {
  write("self", "0::/../host/only\n");
  write("fs/cpu.max", "200000 100000\n");
  EXPECT_EQ(quota(), 2.0);
}

TEST_F(CgroupQuota, IsEmptyWithoutLimits) {
  write("self", "0::/a\nnonsense\n7:cpu:/a\n");
  write("fs/a/cpu.max", "max 100000\n");
  write("fs/cpu/a/cpu.cfs_quota_us", "-1\n");
  write("fs/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST(UsableCpuCount, IsWithinTheAffinityMask) {
  EXPECT_GE(usable_cpu_count(), 1);
  EXPECT_LE(usable_cpu_count(), static_cast<int>(allowed_cpus().size()));
}

}  // namespace
}  // namespace kun
