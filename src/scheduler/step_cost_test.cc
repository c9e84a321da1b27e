#include "scheduler/step_cost.h"

#include <gtest/gtest.h>

namespace kun {
namespace {

TEST(StepCost, LearnsAFixedPartAndAPartPerToken) {
  StepCost cost;
  for (int i = 0; i < 20; ++i)
    cost.observe(i % 2 == 0 ? 4 : 200, 1000 + 10 * (i % 2 == 0 ? 4 : 200));
  EXPECT_NEAR(cost.fixed_us(), 1000.0, 1.0);
  EXPECT_NEAR(cost.per_token_us(), 10.0, 0.01);
  EXPECT_NEAR(cost.tokens_within(3000, 50), 150.0, 1.0);
}

TEST(StepCost, KeepsTheSlopeWhenAllStepsAreAlike) {
  StepCost cost;
  for (int i = 0; i < 20; ++i)
    cost.observe(i % 2 == 0 ? 4 : 200, 1000 + 10 * (i % 2 == 0 ? 4 : 200));
  for (int i = 0; i < 300; ++i) cost.observe(8, 2080);
  EXPECT_NEAR(cost.fixed_us() + 8 * cost.per_token_us(), 2080.0, 1.0);
  EXPECT_LT(cost.per_token_us(), 260.0 + 1e-9);
}

TEST(StepCost, ErrsTowardsSmallStepsWhileItKnowsOneSizeOnly) {
  StepCost cost;
  EXPECT_FALSE(cost.known());
  cost.observe(10, 1000);
  EXPECT_TRUE(cost.known());
  EXPECT_NEAR(cost.tokens_within(2000, 10), 10.0, 1e-6);
}

TEST(StepCost, IgnoresStepsThatTookNoTime) {
  StepCost cost;
  cost.observe(10, 0);
  cost.observe(0, 10);
  cost.observe(10, -5);
  EXPECT_FALSE(cost.known());
}

}  // namespace
}  // namespace kun
