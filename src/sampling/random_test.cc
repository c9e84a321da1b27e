// Philox against the known answers of its authors (Random123, kat_vectors).
#include "sampling/random.h"

#include <gtest/gtest.h>

#include <set>

namespace kun {
namespace {

TEST(Philox, GivesTheAuthorsKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, StaysBelowOneAndDependsOnSeedChoiceAndPosition) {
  std::set<double> values;
  double sum = 0.0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    for (std::uint32_t choice = 0; choice < 10; ++choice) {
      for (std::uint64_t position = 0; position < 100; ++position) {
        const double value = uniform(seed, choice, position);
        ASSERT_GE(value, 0.0);
        ASSERT_LT(value, 1.0);
        values.insert(value);
        sum += value;
      }
    }
  }
  EXPECT_EQ(values.size(), 10'000U);
  EXPECT_NEAR(sum / 10'000.0, 0.5, 0.01);  // 3.5 standard deviations
}

}  // namespace
}  // namespace kun
