// Pooled prompts: the right sum, however the prompt is cut, cached, preempted or in company.
#include "engine/embedding.h"
#include "house.h"
#include "models/script_file.h"

namespace kun {
namespace {

constexpr std::string_view kScript = "block 4\nprompt *\n emit \"abcdefgh abcdefgh\"\n";

// The hidden state of a scripted model is the token it would say next.
float expected_state(std::span<const Token> text) {
  static const Script script = *parse_script(kScript);
  const Script::Place place = script.locate(text);
  return static_cast<float>(place.rule == nullptr ? script.end_token
                                                  : place.rule->reply[place.given]);
}

float expected_mean(std::string_view prompt) {
  const std::vector<Token> tokens = bytes(prompt);
  double sum = 0.0;
  for (std::size_t n = 1; n <= tokens.size(); ++n)
    sum += expected_state(std::span(tokens).first(n));
  return static_cast<float>(sum / static_cast<double>(tokens.size()));
}

GenerateRequest pool(std::string_view prompt, Pooling pooling) {
  GenerateRequest request;
  request.prompt = bytes(prompt);
  request.pooling = pooling;
  return request;
}

struct Pooled {
  std::vector<float> values;
  StreamUsage usage;
};

Pooled read_pooled(Reader& reader) {
  const auto event = reader.next();
  if (!event.has_value()) return {};
  EXPECT_TRUE(event->status.ok()) << event->status.message();
  EXPECT_EQ(event->finish, FinishReason::kStop) << "nothing is told before the end";
  EXPECT_TRUE(event->tokens.empty());
  EXPECT_FALSE(reader.stream().poll().has_value());
  return {event->pooled, event->usage};
}

Pooled pooled(House& house, std::string_view prompt, Pooling pooling) {
  Reader reader(house.engine().generate(pool(prompt, pooling)));
  return read_pooled(reader);
}

TEST(Pooling, IsTheSameHoweverThePromptIsCut) {
  const std::string prompt = "xx abcdefgh abcd zz and something else";
  for (const int chunk : {1000, 16, 7, 1}) {
    HouseOptions options;
    options.limits.tokens_per_step_max = chunk;
    options.limits.tokens_per_step_min = 1;
    House house(kScript, std::move(options));
    const Pooled mean = pooled(house, prompt, Pooling::kMean);
    ASSERT_EQ(mean.values.size(), 2U);
    EXPECT_EQ(mean.values[0], expected_mean(prompt)) << chunk;
    EXPECT_EQ(mean.usage.prompt_count, std::ssize(prompt));
    EXPECT_EQ(mean.usage.output_count, 0);
    const Pooled last = pooled(house, prompt + "bc", Pooling::kLast);
    EXPECT_EQ(last.values[0], expected_state(bytes(prompt + "bc"))) << chunk;
  }
}

TEST(Pooling, TakesFromTheCacheOnlyWhatItNeedNotTell) {
  House house(kScript);
  for (const std::size_t length : {1U, 3U, 4U, 5U, 16U, 17U, 33U}) {
    const std::string prompt = std::string("abcdefgh abcdefgh abcdefgh abcdefgh").substr(0, length);
    for (int round = 0; round < 2; ++round) {
      const Pooled mean = pooled(house, prompt, Pooling::kMean);
      EXPECT_EQ(mean.values[0], expected_mean(prompt)) << length;
      EXPECT_EQ(mean.usage.cached_count, 0) << "every hidden state had to be computed";
    }
    const Pooled last = pooled(house, prompt, Pooling::kLast);
    EXPECT_EQ(last.values[0], expected_state(bytes(prompt)));
    EXPECT_EQ(last.usage.cached_count, static_cast<int>((length - 1) / 4 * 4))
        << "a pooled prompt serves others";
  }
}

TEST(Pooling, SharesItsStepsWithGenerations) {
  HouseOptions options;
  options.limits.tokens_per_step_max = 9;
  options.limits.tokens_per_step_min = 1;
  House house(kScript, std::move(options));
  std::vector<std::unique_ptr<Reader>> talkers;
  std::vector<std::unique_ptr<Reader>> poolers;
  const std::string prompt = "xx abcdefgh abcd zz and something else";
  for (int i = 0; i < 6; ++i) {
    const std::string mine = prompt.substr(static_cast<std::size_t>(i));
    talkers.push_back(std::make_unique<Reader>(house.engine().generate(ask("talk" + mine))));
    poolers.push_back(std::make_unique<Reader>(
        house.engine().generate(pool(mine, i % 2 == 0 ? Pooling::kMean : Pooling::kLast))));
  }
  for (int i = 0; i < 6; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::string mine = prompt.substr(at);
    EXPECT_EQ(talkers[at]->read().text(), "abcdefgh abcdefgh");
    const float expected = i % 2 == 0 ? expected_mean(mine) : expected_state(bytes(mine));
    EXPECT_EQ(read_pooled(*poolers[at]).values[0], expected) << i;
  }
}

TEST(Pooling, SumsEveryTokenOnceUnderPreemption) {
  HouseOptions options;
  options.block_count = 24;  // of 4 tokens
  options.limits.tokens_per_step_max = 4;
  options.limits.tokens_per_step_min = 1;
  House house(kScript, std::move(options));
  const std::string prompt(60, 'x');
  GenerateRequest later = pool(prompt, Pooling::kMean);
  later.priority = 1;
  Reader pooler(house.engine().generate(std::move(later)));
  ASSERT_TRUE(house.wait_for([](const EngineStats& stats) { return stats.step_count >= 3; }));
  EXPECT_EQ(house.answer(ask(std::string(70, 'y'), 4)).text(), "abcd");
  EXPECT_EQ(read_pooled(pooler).values[0], expected_mean(prompt));
}

TEST(Pooling, RefusesWhatDoesNotGoTogether) {
  HouseOptions options;
  options.limits.context_length_max = 8;
  House house(kScript, std::move(options));
  const auto refusal = [&](GenerateRequest request) {
    Reader reader(house.engine().generate(std::move(request)));
    const auto event = reader.next();
    return event.has_value() ? event->status.code() : StatusCode::kOk;
  };
  EXPECT_EQ(pooled(house, "12345678", Pooling::kLast).values.size(), 2U) << "a whole context";
  EXPECT_EQ(refusal(pool("123456789", Pooling::kLast)), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(pool("", Pooling::kMean)), StatusCode::kInvalidArgument);
  GenerateRequest several = pool("abc", Pooling::kMean);
  several.choice_count = 2;
  EXPECT_EQ(refusal(std::move(several)), StatusCode::kInvalidArgument);
}

TEST(Embedding, IsAUnitVectorOfTheDimensionsAskedFor) {
  const std::vector<float> pooled = {3.0F, 0.0F, -4.0F, 12.0F};
  const std::vector<float> whole = make_embedding(pooled);
  EXPECT_FLOAT_EQ(whole[0], 3.0F / 13.0F);
  EXPECT_FLOAT_EQ(whole[3], 12.0F / 13.0F);
  EXPECT_EQ(make_embedding(pooled, 3), (std::vector<float>{0.6F, 0.0F, -0.8F}));
  EXPECT_EQ(make_embedding(pooled, 3, false), (std::vector<float>{3.0F, 0.0F, -4.0F}));
  EXPECT_EQ(make_embedding({0.0F, 0.0F}), (std::vector<float>{0.0F, 0.0F}));
  EXPECT_EQ(make_embedding({1e30F, 0.0F}), (std::vector<float>{1.0F, 0.0F}));
}

TEST(Embedding, SimilarityIsTheCosine) {
  const std::vector<float> a = {3.0F, 4.0F};
  EXPECT_EQ(cosine_similarity(a, a), 1.0F);
  EXPECT_EQ(cosine_similarity(a, std::vector<float>{-6.0F, -8.0F}), -1.0F);
  EXPECT_EQ(cosine_similarity(a, std::vector<float>{4.0F, -3.0F}), 0.0F);
  EXPECT_FLOAT_EQ(cosine_similarity(a, std::vector<float>{1.0F, 0.0F}), 0.6F);
  EXPECT_EQ(cosine_similarity(a, std::vector<float>{0.0F, 0.0F}), 0.0F);
}

}  // namespace
}  // namespace kun
