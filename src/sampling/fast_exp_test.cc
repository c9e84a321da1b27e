#include "sampling/fast_exp.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kun {
namespace {

TEST(SoftmaxExp, IsWithinItsBoundOfExp) {
  double worst = 0.0;
  for (float x = 0.0F; x >= kNegligibleExponent; x -= 0.00037F) {
    const double expected = std::exp(double{x});
    worst = std::max(worst, std::abs(double{softmax_exp(x)} / expected - 1.0));
  }
  EXPECT_LT(worst, 2e-7);
}

TEST(SoftmaxExp, IsExactlyOneAtZeroAndZeroWhereNegligible) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(softmax_exp(0.0F), 1.0F);
  EXPECT_EQ(softmax_exp(-0.0F), 1.0F);
  EXPECT_GT(softmax_exp(kNegligibleExponent), 0.0F);
  EXPECT_EQ(softmax_exp(std::nextafter(kNegligibleExponent, -kInfinity)), 0.0F);
  EXPECT_EQ(softmax_exp(-kInfinity), 0.0F);
  EXPECT_EQ(softmax_exp(-std::numeric_limits<float>::max()), 0.0F);
  EXPECT_EQ(softmax_exp(std::numeric_limits<float>::quiet_NaN()), 0.0F);
}

}  // namespace
}  // namespace kun
