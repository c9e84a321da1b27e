// Logprobs of prompts: each token once, in order, however the prompt is cut, cached or preempted.
#include <cmath>

#include "executor/token_score.h"
#include "house.h"

namespace kun {
namespace {

struct Scored {
  std::vector<Token> tokens;
  std::vector<float> logprobs;
  std::vector<Token> top;
  StreamUsage usage;
  std::string text;
};

Scored score(House& house, GenerateRequest request) {
  Scored scored;
  int open = request.choice_count;
  Reader reader(house.engine().generate(std::move(request)));
  while (open > 0) {
    const auto event = reader.next();
    if (!event.has_value()) break;
    EXPECT_TRUE(event->status.ok()) << event->status.message();
    EXPECT_TRUE(event->prompt_scores.empty() || scored.text.empty()) << "scores come first";
    for (const SampledToken& token : event->prompt_scores) {
      scored.tokens.push_back(token.token);
      scored.logprobs.push_back(token.logprob);
      scored.top.push_back(token.top.empty() ? -1 : token.top.front().token);
    }
    for (const SampledToken& token : event->tokens) {
      if (event->choice == 0 && token.token < 256) scored.text += static_cast<char>(token.token);
    }
    scored.usage = event->usage;
    if (event->finish.has_value()) --open;
  }
  return scored;
}

// A model that expects this very text to go on as it does.
constexpr std::string_view kScript = "block 4\nprompt *\n emit \"abcdefgh abcdefgh\"\n";

TEST(PromptScores, AreTheSameHoweverThePromptIsCut) {
  const std::string prompt = "xx abcdefgh abcd zz and something else";
  std::vector<float> expected;
  for (const int chunk : {1000, 16, 7, 1}) {
    HouseOptions options;
    options.limits.tokens_per_step_max = chunk;
    options.limits.tokens_per_step_min = 1;
    House house(kScript, std::move(options));
    GenerateRequest request = ask(prompt);
    request.prompt_logprob_count = 1;
    const Scored scored = score(house, std::move(request));
    EXPECT_EQ(text_of(scored.tokens), prompt.substr(1)) << chunk;
    if (expected.empty()) expected = scored.logprobs;
    EXPECT_EQ(scored.logprobs, expected) << chunk;
    EXPECT_EQ(scored.text, "abcdefgh abcdefgh");
  }
  // "b" after "a" is what the model expects, "z" after " " is not.
  EXPECT_NEAR(expected[prompt.find('b') - 1], 0.0F, 1e-6F);
  EXPECT_NEAR(expected[prompt.find('z') - 1], -50.0F, 1e-3F);
}

TEST(PromptScores, AreTheSameWhenThePromptIsCachedAlready) {
  House house(kScript);
  for (const std::size_t length : {1U, 2U, 4U, 15U, 16U, 17U, 31U, 32U, 33U}) {
    const std::string prompt = std::string("abcdefgh abcdefgh abcdefgh abcdefgh").substr(0, length);
    std::vector<float> first;
    for (int round = 0; round < 2; ++round) {
      GenerateRequest request = ask(prompt, 3);
      request.prompt_logprob_count = 0;
      const Scored scored = score(house, std::move(request));
      EXPECT_EQ(text_of(scored.tokens), prompt.substr(1));
      EXPECT_EQ(scored.usage.cached_count, 0) << "its logits had to be computed";
      if (round == 0) first = scored.logprobs;
      EXPECT_EQ(scored.logprobs, first);
    }
    EXPECT_EQ(house.answer(ask(prompt, 3)).usage.cached_count > 0, length > 4) << "others may";
  }
}

TEST(PromptScores, AreToldOnceForSeveralChoices) {
  House house(kScript);
  GenerateRequest request = ask("xabcdef", 4);
  request.choice_count = 3;
  request.prompt_logprob_count = 2;
  const Scored scored = score(house, std::move(request));
  EXPECT_EQ(text_of(scored.tokens), "abcdef");
  EXPECT_EQ(text_of(scored.top), "abcdef");
}

TEST(PromptScores, AreToldOnceUnderPreemption) {
  HouseOptions options;
  options.block_count = 24;  // of 4 tokens: two requests do not fit side by side to their ends
  House house(kScript, std::move(options));
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 4; ++i) {
    GenerateRequest request = ask("abcdefgh abcdefgh abcdefgh abcd", 30);
    request.prompt_logprob_count = 0;
    request.ignore_end_tokens = true;
    readers.push_back(std::make_unique<Reader>(house.engine().generate(std::move(request))));
  }
  for (const auto& reader : readers) {
    std::size_t count = 0;
    for (bool ended = false; !ended;) {
      const auto event = reader->next();
      ASSERT_TRUE(event.has_value());
      count += event->prompt_scores.size();
      ended = event->finish.has_value();
    }
    EXPECT_EQ(count, 30U);
  }
  EXPECT_GT(house.engine().stats().preemption_count, 0U);
}

TEST(PromptScores, AreLogSoftmaxWithTheLikeliestBeside) {
  const std::vector<float> logits = {1.0F, 3.0F, 2.0F, 3.0F};
  const auto score = score_token(logits, 3, 0, 5);
  ASSERT_TRUE(score.has_value());
  const double sum = std::exp(1.0) + 2.0 * std::exp(3.0) + std::exp(2.0);
  EXPECT_NEAR(score->logprob, 1.0 - std::log(sum), 1e-6);
  ASSERT_EQ(score->top.size(), 3U) << "rows from the limit on name no token";
  EXPECT_EQ(score->top[0].token, 1);
  EXPECT_EQ(score->top[1].token, 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(score_token(std::vector<float>{0.0F, nan}, 0, 0, 0));
  EXPECT_FALSE(score_token(logits, 0, 4, 0));
  EXPECT_FALSE(score_token(logits, 0, -1, 0));
}

}  // namespace
}  // namespace kun
