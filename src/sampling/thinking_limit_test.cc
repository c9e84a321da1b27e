// Thoughts are closed after as many tokens as they may have, neither earlier nor later nor twice.
#include "sampling/thinking_limit.h"

#include <gtest/gtest.h>

#include "sampling/sampler.h"
#include "sampling/verification.h"

namespace kun {
namespace {

constexpr Token kOpen = 7;
constexpr Token kClose = 8;
constexpr Token kClose2 = 9;

struct Thinking {
  explicit Thinking(int most) {
    params.temperature = 0.0F;
    params.thinking.token_count_max = most;
    params.thinking.open = true;
    params.thinking.begin = {kOpen};
    params.thinking.close = {kClose, kClose2};
  }

  std::optional<Token> forced(std::vector<Token> output) const {
    output.insert(output.begin(), {kOpen, kClose});  // a prompt, which is looked at by nobody
    SamplingRow row;
    row.params = &params;
    row.history = output;
    row.prompt_count = 2;
    return forced_token(row);
  }

  // What a model that would always say 1 says.
  std::vector<Token> say(std::size_t count) const {
    const std::vector<float> logits = {0.0F, 5.0F, 1.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F};
    Sampler sampler;
    std::vector<Token> text = {3};
    while (text.size() < count + 1) {
      SamplingRow row;
      row.params = &params;
      row.history = text;
      row.prompt_count = 1;
      const auto token = sampler.sample(logits, row);
      text.push_back(token.has_value() ? token->token : -1);
    }
    return {text.begin() + 1, text.end()};
  }

  SamplingParams params;
};

TEST(ThinkingLimit, ClosesAThoughtWhenItsTokensAreUsedUp) {
  EXPECT_EQ(Thinking(3).say(7), (std::vector<Token>{1, 1, 1, kClose, kClose2, 1, 1}));
  EXPECT_EQ(Thinking(0).say(4), (std::vector<Token>{kClose, kClose2, 1, 1}));
  EXPECT_EQ(Thinking(-1).say(3), (std::vector<Token>{1, 1, 1}));
}

TEST(ThinkingLimit, LeavesAThoughtAloneThatEndedByItself) {
  const Thinking thinking(3);
  EXPECT_FALSE(thinking.forced({1, kClose, kClose2, 1, 1, 1}));
  EXPECT_FALSE(thinking.forced({1, kClose, kClose2}));
  EXPECT_EQ(thinking.forced({1, 2, kClose}), kClose) << "half of an end is none";
  EXPECT_FALSE(thinking.forced({1, 2}));
}

TEST(ThinkingLimit, CountsFromWhereTheModelOpensItsThought) {
  Thinking thinking(2);
  thinking.params.thinking.open = false;
  EXPECT_FALSE(thinking.forced({1, 1, 1, 1, 1})) << "no thought was opened";
  EXPECT_FALSE(thinking.forced({kOpen, 1}));
  EXPECT_EQ(thinking.forced({kOpen, 1, 1}), kClose);
  EXPECT_EQ(thinking.forced({4, kOpen, 1, 1, kClose}), kClose2) << "a line end may come before";
  EXPECT_FALSE(thinking.forced({4, kOpen, 1, 1, kClose, kClose2}));
  EXPECT_FALSE(thinking.forced({1, 1, 1, 1, kOpen, 1, 1})) << "text that speaks of thoughts";
}

TEST(ThinkingLimit, IsStrongerThanEverythingElse) {
  Thinking thinking(1);
  thinking.params.allowed_tokens = {1};
  thinking.params.logit_bias = {{kClose, -100.0F}};
  thinking.params.output_count_min = 100;
  thinking.params.end_tokens = {kClose2};
  thinking.params.logprob_count = 0;
  EXPECT_EQ(thinking.say(5), (std::vector<Token>{1, kClose, kClose2, 1, 1}));
  thinking.params.thinking.close = {10'000};  // no such row
  EXPECT_EQ(thinking.say(3), (std::vector<Token>{1, 1, 1}));
}

// A draft that runs past the limit is wrong, one that knows it is right.
TEST(ThinkingLimit, DraftsAreJudgedByIt) {
  const Thinking thinking(2);
  const std::vector<float> logits = {0.0F, 5.0F, 1.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F};
  const auto verify = [&](const std::vector<Token>& drafts) {
    std::vector<Token> text = {3, 1};
    text.insert(text.end(), drafts.begin(), drafts.end());
    Sampler sampler;
    Verification verification(sampler);
    SliceResult slice;
    for (std::size_t i = 0; i <= drafts.size(); ++i) {
      SamplingRow row;
      row.params = &thinking.params;
      row.history = std::span(text).first(2 + i);
      row.prompt_count = 1;
      row.draft = i < drafts.size() ? drafts[i] : kNoDraft;
      verification.take(logits, row, slice);
    }
    std::vector<Token> said;
    for (const SampledToken& token : slice.tokens) said.push_back(token.token);
    return said;
  };
  EXPECT_EQ(verify({1, 1, 1}), (std::vector<Token>{1, kClose}));
  EXPECT_EQ(verify({1, kClose, kClose2}), (std::vector<Token>{1, kClose, kClose2, 1}));
}

}  // namespace
}  // namespace kun
