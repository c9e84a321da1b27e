// What tenants may count on when there is more work than the machine can do.
#include <gtest/gtest.h>

#include "load.h"

namespace kun {
namespace {

// Keeps `count` requests of the tenant waiting.
void keep_waiting(Load& load, const std::string& tenant, double weight, int count, int prompt_max,
                  int output_max) {
  while (load.tenant(tenant).waiting_count < count) {
    const int prompt = load.pick(prompt_max / 2, prompt_max);
    const int output = load.pick(output_max / 2, output_max);
    ASSERT_TRUE(load.add(load.request(tenant, weight, prompt, output)).ok());
  }
}

TEST(Fairness, TokensAreSharedByWeightUnderOverload) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    Load load(seed);
    for (int i = 0; i < 4000; ++i) {
      keep_waiting(load, "a", 1.0, 20, 80, 60);
      keep_waiting(load, "b", 3.0, 20, 80, 60);
      load.step();
    }
    EXPECT_NEAR(load.tokens("b") / load.tokens("a"), 3.0, 0.1) << "seed " << seed;
  }
}

TEST(Fairness, SharesDoNotDependOnTheShapeOfRequests) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    Load load(seed);
    for (int i = 0; i < 9000; ++i) {
      keep_waiting(load, "long outputs", 3.0, 10, 20, 400);
      keep_waiting(load, "long prompts", 1.0, 10, 600, 10);
      load.step();
    }
    const double ratio = load.tokens("long outputs") / load.tokens("long prompts");
    EXPECT_NEAR(ratio, 3.0, 0.15) << "seed " << seed;
  }
}

TEST(Fairness, SharesHoldWhenBlocksAreShortAndNotSlots) {
  Load load;
  load.limits.block_counts = {40};  // 640 tokens
  load.limits.sequences_running_max = 64;
  load.limits.tenant_credit = 256;
  for (int i = 0; i < 5000; ++i) {
    keep_waiting(load, "a", 1.0, 10, 80, 60);
    keep_waiting(load, "b", 3.0, 10, 80, 60);
    load.step();
  }
  EXPECT_NEAR(load.tokens("b") / load.tokens("a"), 3.0, 0.15);
}

TEST(Fairness, WhatOneTenantDoesNotUseOthersHave) {
  Load load;
  for (int i = 0; i < 500; ++i) {
    keep_waiting(load, "a", 1.0, 20, 40, 40);
    load.step();
    ASSERT_EQ(load.slice_count, 8);
  }
}

// The flood fills every slot with long outputs, and the line behind them.
void flood(Load& load, int output) {
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(load.add(load.request("flood", 1.0, 60, output)).ok());
}

TEST(Fairness, AFloodDelaysASingleRequestOfAnotherByNoMoreThanTheStepThatRuns) {
  Load load;
  flood(load, 2000);
  for (int i = 0; i < 300; ++i) load.step();
  // Now and then, never two at a time: each finds the slots taken and the line long.
  for (int round = 0; round < 10; ++round) {
    SequenceSpec single = load.request("single", 1.0, 100, 20);
    const SequenceId id = single.id;
    load.step([&] { ASSERT_TRUE(load.add(std::move(single)).ok()); });
    for (int i = 0; i < 60; ++i) load.step();
    const Served& served = load.served[id];
    EXPECT_EQ(served.first_step, served.added_before_step) << "round " << round;
    EXPECT_TRUE(served.ended_at.has_value());
  }
}

TEST(Fairness, LongPromptsOfAFloodDoNotDelayASingleRequest) {
  Load load;
  load.limits.sequences_running_max = 32;
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(load.add(load.request("flood", 1.0, 3500, 10)).ok());
  for (int i = 0; i < 5; ++i) load.step();
  SequenceSpec single = load.request("single", 1.0, 100, 20);
  const SequenceId id = single.id;
  load.step([&] { ASSERT_TRUE(load.add(std::move(single)).ok()); });
  load.step();
  EXPECT_EQ(load.served[id].output_count, 1);
}

TEST(Fairness, AFloodThatHoldsAllBlocksGivesWayToASingleRequest) {
  Load load;
  load.limits.block_counts = {64};
  flood(load, 100);
  for (int i = 0; i < 100; ++i) load.step();
  SequenceSpec single = load.request("single", 1.0, 400, 20);
  const SequenceId id = single.id;
  load.step([&] { ASSERT_TRUE(load.add(std::move(single)).ok()); });
  load.step();
  EXPECT_EQ(load.served[id].first_step, load.served[id].added_before_step);
}

TEST(Fairness, AFullLineHasRoomForWhoIsNotInItYet) {
  Load load;
  load.limits.sequences_waiting_max = 50;
  while (load.add(load.request("flood", 1.0, 60, 100)).ok()) continue;
  EXPECT_EQ(load.scheduler().refusal().code, kCodeQueueFull);
  EXPECT_TRUE(load.add(load.request("single", 1.0, 60, 100)).ok());
  EXPECT_FALSE(load.add(load.request("flood", 1.0, 60, 100)).ok());
  // And yet the line has an end, however many come.
  int count = 51;
  for (int i = 0; i < 1000; ++i) {
    if (load.add(load.request("tenant " + std::to_string(i), 1.0, 60, 100)).ok()) ++count;
  }
  EXPECT_LE(count, 100);
}

TEST(Fairness, IdleTenantsHoardNoCredit) {
  Load load;
  ASSERT_TRUE(load.add(load.request("late", 1.0, 20, 10)).ok());
  for (int i = 0; i < 2000; ++i) {
    keep_waiting(load, "busy", 1.0, 20, 80, 60);
    load.step();
  }
  const double before = load.tokens("busy");
  const double late_before = load.tokens("late");
  for (int i = 0; i < 2500; ++i) {
    keep_waiting(load, "busy", 1.0, 20, 80, 60);
    keep_waiting(load, "late", 1.0, 20, 80, 60);
    load.step();
  }
  const double busy = load.tokens("busy") - before;
  const double late = load.tokens("late") - late_before;
  // The credit, and what a handful of requests that were let in too early may add.
  EXPECT_NEAR(late, busy, load.limits.tenant_credit + 8 * 140);
}

// Few slots, two tenants with long outputs: little is done twice.
TEST(Fairness, TakingTurnsCostsLittle) {
  Load load;
  load.limits.sequences_running_max = 2;
  load.limits.tenant_credit = 100;
  load.limits.prefix_caching = false;
  for (int i = 0; i < 12000; ++i) {
    keep_waiting(load, "a", 1.0, 3, 400, 600);
    keep_waiting(load, "b", 1.0, 3, 100, 100);
    load.step();
  }
  const double useful = load.tokens("a") + load.tokens("b");
  // Who has others sent away pays for it, so that useful tokens alone need not be equal.
  EXPECT_GT(load.tokens("b"), 0.5 * load.tokens("a"));
  EXPECT_GT(load.tokens("a"), 0.5 * load.tokens("b"));
  EXPECT_LT(static_cast<double>(load.computed_count), 1.5 * useful);
}

TEST(Fairness, NobodyStarvesHoweverSmallTheWeight) {
  Load load;
  ASSERT_TRUE(load.add(load.request("small", 0.01, 60, 30)).ok());
  const SequenceId id = 1;
  for (int i = 0; i < 5000 && !load.served[id].ended_at; ++i) {
    keep_waiting(load, "a", 1.0, 10, 80, 60);
    keep_waiting(load, "b", 3.0, 10, 80, 60);
    load.step();
    if (i % 10 == 0 && load.tenant("small").waiting_count < 5) {
      ASSERT_TRUE(load.add(load.request("small", 0.01, 60, 30)).ok());
    }
  }
  EXPECT_TRUE(load.served[id].ended_at.has_value());
  for (int i = 0; i < 10000; ++i) {
    keep_waiting(load, "a", 1.0, 10, 80, 60);
    keep_waiting(load, "b", 3.0, 10, 80, 60);
    keep_waiting(load, "small", 0.01, 5, 80, 60);
    load.step();
  }
  const double others = load.tokens("a") + load.tokens("b");
  EXPECT_GT(load.tokens("small"), 0.3 * others * 0.01 / 4.0);
  EXPECT_LT(load.tokens("small"), 2.0 * others * 0.01 / 4.0 + load.limits.tenant_credit);
}

TEST(Fairness, PriorityDecidesInsideOfATenantAndNotBetweenTenants) {
  Load load;
  load.limits.sequences_running_max = 2;
  const auto add = [&](const std::string& tenant, int priority) {
    SequenceSpec spec = load.request(tenant, 1.0, 40, 50);
    spec.priority = priority;
    const SequenceId id = spec.id;
    EXPECT_TRUE(load.add(std::move(spec)).ok());
    return id;
  };
  std::vector<SequenceId> a;
  std::vector<SequenceId> b;
  for (int i = 0; i < 6; ++i) {
    a.push_back(add("a", 6 - i));  // each more urgent than those before
    b.push_back(add("b", 1000));   // all less urgent than any of the other's
  }
  while (!load.scheduler().idle()) load.step();
  for (std::size_t i = 1; i < a.size(); ++i) {
    EXPECT_LT(load.served[a[i]].ended_at, load.served[a[i - 1]].ended_at);
  }
  // They have taken turns all the same.
  EXPECT_LT(load.served[b[0]].ended_at, load.served[a[4]].ended_at);
  EXPECT_LT(load.served[b[2]].ended_at, load.served[a[1]].ended_at);
}

TEST(Fairness, TokensFromTheCacheCostATenth) {
  Load load;
  std::vector<Token> common(480);
  for (Token& token : common) token = load.pick(0, 30'000);
  const auto add_cached = [&] {
    SequenceSpec spec = load.request("cached", 1.0, 4, 10);
    spec.prompt.insert(spec.prompt.begin(), common.begin(), common.end());
    ASSERT_TRUE(load.add(std::move(spec)).ok());
  };
  for (int i = 0; i < 2000; ++i) {
    while (load.tenant("cached").waiting_count < 10) add_cached();
    keep_waiting(load, "fresh", 1.0, 10, 480, 10);
    load.step();
  }
  const TenantStats cached = load.tenant("cached");
  const double weighed =
      load.tokens("cached") + 0.1 * static_cast<double>(cached.cached_token_count);
  EXPECT_GT(cached.cached_token_count, 100'000U);
  EXPECT_NEAR(weighed / load.tokens("fresh"), 1.0, 0.05);
}

}  // namespace
}  // namespace kun
