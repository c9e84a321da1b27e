#include "sampling/token_limits.h"

#include <gtest/gtest.h>

#include <numeric>

#include "sampling/sampler.h"

namespace kun {
namespace {

Token sample(const SamplingParams& params, const std::vector<Token>& history, int prompt_count) {
  std::vector<float> logits(10);
  std::iota(logits.begin(), logits.end(), 0.0F);  // token 9 is the likeliest, then 8, ...
  Sampler sampler;
  SamplingRow row;
  row.params = &params;
  row.history = history;
  row.prompt_count = prompt_count;
  const auto token = sampler.sample(logits, row);
  return token ? token->token : -1;
}

TEST(TokenLimits, OnlyAllowedTokensAreSampled) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.allowed_tokens = {2, 5, 7};
  EXPECT_EQ(sample(params, {1}, 1), 7);
  params.allowed_tokens = {0};
  EXPECT_EQ(sample(params, {1}, 1), 0);
  params.allowed_tokens = {4, 400};
  EXPECT_EQ(sample(params, {1}, 1), 4);
  params.allowed_tokens = {-5, 400};
  EXPECT_EQ(sample(params, {1}, 1), -1) << "nothing is left";
  params.allowed_tokens = {1, 2, 3};
  params.temperature = 1.0F;
  for (params.seed = 0; params.seed < 50; ++params.seed) {
    const Token token = sample(params, {1}, 1);
    EXPECT_TRUE(token >= 1 && token <= 3) << token;
  }
}

TEST(TokenLimits, AWordCannotBeFinished) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.bad_words = {{9}, {3, 4, 8}};
  EXPECT_EQ(sample(params, {0}, 1), 8);
  EXPECT_EQ(sample(params, {0, 3, 4}, 1), 7) << "3 4 was said, so 8 would finish the word";
  EXPECT_EQ(sample(params, {0, 3, 4, 1}, 1), 8);
  EXPECT_EQ(sample(params, {0, 3, 4}, 3), 8) << "the prompt may say what it wants";
  EXPECT_EQ(sample(params, {0, 3, 4}, 2), 8);
  params.bad_words = {{}, {-1}, {500}};
  EXPECT_EQ(sample(params, {0}, 1), 9);
}

TEST(TokenLimits, LogprobsStayTheModels) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.logprob_count = 1;
  params.allowed_tokens = {2};
  const std::vector<float> logits = {0.0F, 5.0F, 1.0F};
  const std::vector<Token> history = {0};
  SamplingRow row;
  row.params = &params;
  row.history = history;
  row.prompt_count = 1;
  const auto token = Sampler().sample(logits, row);
  ASSERT_TRUE(token.has_value());
  EXPECT_EQ(token->token, 2);
  EXPECT_EQ(token->top.front().token, 1);
  EXPECT_LT(token->logprob, -4.0F);
}

}  // namespace
}  // namespace kun
