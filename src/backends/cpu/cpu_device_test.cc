#include "backends/cpu/cpu_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kun {
namespace {

using testing::HasSubstr;

TEST(CpuDevice, OpensEveryTableItNames) {
  const std::vector<std::string> names = cpu_kernel_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "reference");
  for (const std::string& name : names) {
    const auto device = open_cpu_device({.thread_count = 1, .kernels = name});
    ASSERT_TRUE(device.has_value());
    EXPECT_THAT((*device)->description(), HasSubstr("cpu " + name + ", 1 thread,"));
  }
}

TEST(CpuDevice, PicksTheBestTableAndAllProcessors) {
  const auto device = open_cpu_device({});
  ASSERT_TRUE(device.has_value());
  EXPECT_THAT((*device)->description(), HasSubstr(cpu_kernel_names().back()));
  EXPECT_EQ((*device)->cache_dtype(), DType::kBF16);
}

TEST(CpuDevice, KeepsAFloat32CacheForFloat32) {
  const auto device = open_cpu_device({.thread_count = 1, .compute = ComputeType::kFloat32});
  EXPECT_EQ((*device)->cache_dtype(), DType::kF32);
}

TEST(CpuDevice, NamesTheTablesItHasWhenAskedForAnother) {
  const auto device = open_cpu_device({.kernels = "sse9"});
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(device.error().message(), HasSubstr("'sse9'"));
  EXPECT_THAT(device.error().message(), HasSubstr("reference"));
}

TEST(CpuDevice, RefusesAbsurdThreadCounts) {
  EXPECT_FALSE(open_cpu_device({.thread_count = -1}).has_value());
  EXPECT_FALSE(open_cpu_device({.thread_count = 100000}).has_value());
}

}  // namespace
}  // namespace kun
