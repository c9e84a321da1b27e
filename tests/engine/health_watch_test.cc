#include "engine/health_watch.h"

#include <gtest/gtest.h>

namespace kun {
namespace {

TEST(HealthWatch, CallsPendingWorkThatStandsStillAHang) {
  HealthWatch watch(5);
  EXPECT_TRUE(watch.healthy(true, 1, 0));
  EXPECT_TRUE(watch.healthy(true, 1, 4));
  EXPECT_FALSE(watch.healthy(true, 1, 5));
  EXPECT_TRUE(watch.healthy(true, 2, 6));
  EXPECT_TRUE(watch.healthy(true, 2, 10));
  EXPECT_FALSE(watch.healthy(true, 2, 11));
}

TEST(HealthWatch, IdleTimeIsNotHeldAgainstNewWork) {
  HealthWatch watch(5);
  EXPECT_TRUE(watch.healthy(true, 1, 0));
  watch.moved(100);  // work arrived; nobody asked meanwhile
  EXPECT_TRUE(watch.healthy(true, 1, 104));
  EXPECT_FALSE(watch.healthy(true, 1, 105));
}

TEST(HealthWatch, IsHealthyWithoutWork) {
  HealthWatch watch(5);
  EXPECT_TRUE(watch.healthy(false, 1, 0));
  EXPECT_TRUE(watch.healthy(false, 1, 1000));
  EXPECT_TRUE(watch.healthy(true, 1, 1004));
}

}  // namespace
}  // namespace kun
