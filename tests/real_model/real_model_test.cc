// A real model through the whole engine: a sequence says the same whether it runs alone, in
// company, after a preemption or on a cached prefix; and what a request may ask for (seeds,
// choices, limits, log probabilities, stops) holds for real logits under load.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "executor/worker.h"
#include "house.h"

namespace kun {
namespace {

constexpr int kOutputCount = 48;

// A short, a middling and a long one, which fills more than two blocks of cache.
std::vector<std::string> prompts() {
  return {
      "The capital of France is",
      "Here is a short story about a lighthouse keeper who one winter night finds a letter in a "
      "bottle. The letter was written a hundred years ago, and it begins like this:",
      "Scene: a public square.\n\n" + play_text().substr(0, 900),
  };
}

GenerateRequest greedy(std::vector<Token> prompt, int output_count = kOutputCount) {
  GenerateRequest request;
  request.prompt = std::move(prompt);
  request.output_count_max = output_count;
  request.sampling.temperature = 0.0F;
  request.ignore_end_tokens = true;
  return request;
}

GenerateRequest seeded(std::vector<Token> prompt, std::uint64_t seed) {
  GenerateRequest request = greedy(std::move(prompt), 32);
  request.sampling.temperature = 0.9F;
  request.sampling.top_p = 0.95F;
  request.sampling.seed = seed;
  return request;
}

// Pieces of the play of many lengths, none of them one of prompts().
std::vector<GenerateRequest> company(const House& house, int count, int output_count) {
  const std::vector<Token> play = house.encode(play_text());
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < count; ++i) {
    const auto first = play.begin() + 3 + 11 * i;
    requests.push_back(greedy({first, first + 2 + 37 * i % 90}, output_count));
  }
  return requests;
}

class RealModel : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (has_model()) house_ = std::make_unique<House>(DeviceOptions{});
  }
  static void TearDownTestSuite() { house_.reset(); }
  void SetUp() override {
    if (!has_model()) GTEST_SKIP() << kNoModel;
  }

  static const House& house() { return *house_; }
  static std::vector<Token> prompt(std::size_t index) {
    return house_->encode(prompts().at(index));
  }
  static std::unique_ptr<Engine> engine() {
    return house_->engine({.kv_cache_bytes = std::int64_t{256} << 20});
  }

  // What `request` gives by itself, on an engine that has seen nothing before.
  static std::vector<Answer> alone(GenerateRequest request) {
    const auto fresh = engine();
    return run(*fresh, {std::move(request)}).front();
  }

  // The same, between sixteen others.
  static std::vector<Answer> under_load(GenerateRequest request) {
    const auto fresh = engine();
    std::vector<GenerateRequest> requests = company(house(), 16, 40);
    requests.insert(requests.begin() + 8, std::move(request));
    return run(*fresh, std::move(requests)).at(8);
  }

 private:
  static inline std::unique_ptr<House> house_;
};

// --- One sequence, many circumstances ------------------------------------------------------------

// The same on one thread and on two; what to expect is computed on one.
class GreedySequences : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!has_model()) GTEST_SKIP() << kNoModel;
    const House one({.thread_count = 1});
    for (const std::string& text : prompts()) prompts_.push_back(one.encode(text));
    for (const std::vector<Token>& tokens : prompts_) {
      const auto fresh = one.engine({.kv_cache_bytes = std::int64_t{32} << 20,
                                     .sequences_running_max = 1,
                                     .prefix_caching = false});
      expected_.push_back(run_one(*fresh, greedy(tokens)).tokens());
      ASSERT_EQ(expected_.back().size(), std::size_t{kOutputCount});
      // A degenerate output would prove nothing.
      const std::set<Token> distinct(expected_.back().begin(), expected_.back().end());
      ASSERT_GT(distinct.size(), 10U);
    }
    house_ = std::make_unique<House>(DeviceOptions{.thread_count = GetParam()});
  }

  void expect_same(std::size_t which, const Answer& answer) const {
    EXPECT_EQ(answer.tokens(), expected_[which])
        << "prompt " << which << ": " << house_->bundle->tokenizer->decode(answer.tokens(), false);
  }

  std::vector<std::vector<Token>> prompts_;
  std::vector<std::vector<Token>> expected_;  // [prompt][output]
  std::unique_ptr<House> house_;
};
INSTANTIATE_TEST_SUITE_P(Threads, GreedySequences, testing::Values(1, 2),
                         [](const auto& test) { return std::to_string(test.param); });

TEST_P(GreedySequences, AreTheSameAloneAndInACompanyOf32) {
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const auto engine = house_->engine({.kv_cache_bytes = std::int64_t{32} << 20});
    expect_same(i, run_one(*engine, greedy(prompts_[i])));
  }
  // Small steps, so that prompts come in chunks beside others' decoding.
  const auto engine =
      house_->engine({.kv_cache_bytes = std::int64_t{256} << 20, .tokens_per_step_max = 96});
  std::vector<GenerateRequest> requests = company(*house_, 32, kOutputCount);
  const std::vector<std::size_t> places{0, 17, 34};
  for (std::size_t i = 0; i < places.size(); ++i) {
    requests.insert(requests.begin() + static_cast<std::ptrdiff_t>(places[i]), greedy(prompts_[i]));
  }
  const auto answers = run(*engine, std::move(requests));
  ASSERT_EQ(answers.size(), 35U);
  for (std::size_t i = 0; i < places.size(); ++i) expect_same(i, answers[places[i]].front());
  // One after the other they would have taken 35 * 48 steps.
  EXPECT_LT(engine->stats().step_count, 35U * 48U / 4U) << "they did not run together";
}

// A prompt that fills the pool keeps all others waiting until the last of them is there. They are
// then admitted together, with one block to spare for each; eight prompts of one block need two
// more within 33 tokens. Whoever came last gives way: the sequences that are compared.
TEST_P(GreedySequences, AreTheSameAfterPreemption) {
  constexpr int kOthers = 8;
  const KvGroup& group = house_->bundle->model->kv_layout().groups.front();
  const std::vector<Token> play = house_->encode(play_text() + play_text());
  std::vector<GenerateRequest> requests;
  std::int64_t block_count = 0;
  for (std::int64_t i = 0; i < kOthers; ++i) {
    const auto first = play.begin() + i * group.tokens_per_block;
    requests.push_back(greedy({first, first + group.tokens_per_block}, kOutputCount));
    block_count += 2;
  }
  for (const std::vector<Token>& tokens : prompts_) {
    requests.push_back(greedy(tokens));
    block_count += std::ssize(tokens) / group.tokens_per_block + 2;
  }
  const std::int64_t filling = (block_count - 1) * group.tokens_per_block;
  ASSERT_LT(filling, std::ssize(play));
  const auto first = play.begin() + 1;  // shares no prefix with the others
  requests.insert(requests.begin(), greedy({first, first + filling}, 1));
  for (const bool prefix_caching : {false, true}) {
    const auto engine = house_->engine({.kv_cache_bytes = block_count * group.block_bytes(),
                                        .decode_slowdown_max = 0.0,  // prompts at once
                                        .prefix_caching = prefix_caching});
    const auto answers = run(*engine, requests);
    ASSERT_EQ(answers.size(), requests.size());
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      expect_same(i, answers[1 + kOthers + i].front());
    }
    EXPECT_GT(engine->stats().preemption_count, 0U);
  }
}

TEST_P(GreedySequences, AreTheSameOnACachedPrefix) {
  const auto engine = house_->engine({.kv_cache_bytes = std::int64_t{64} << 20});
  const std::vector<Token>& prompt = prompts_.back();
  const Answer first = run_one(*engine, greedy(prompt));
  expect_same(2, first);
  EXPECT_EQ(first.usage.cached_count, 0);
  const Answer again = run_one(*engine, greedy(prompt));
  expect_same(2, again);
  EXPECT_GT(again.usage.cached_count, 0);
  EXPECT_LT(again.usage.cached_count, static_cast<int>(prompt.size()));

  // Prompt and answer as the next prompt: what decoding left in the cache serves as a prefix too.
  constexpr std::ptrdiff_t kTaken = 40;
  const std::vector<Token>& output = expected_.back();
  std::vector<Token> longer = prompt;
  longer.insert(longer.end(), output.begin(), output.begin() + kTaken);
  const Answer rest = run_one(*engine, greedy(longer, kOutputCount - static_cast<int>(kTaken)));
  EXPECT_EQ(rest.tokens(), std::vector<Token>(output.begin() + kTaken, output.end()));
  EXPECT_GT(rest.usage.cached_count, static_cast<int>(prompt.size()));
  EXPECT_GT(engine->stats().prefix_hit_token_count, 0U);
}

// --- What a request may ask for ------------------------------------------------------------------

TEST_F(RealModel, GivesTheSameTextForTheSameSeedUnderLoad) {
  const std::vector<Token> tokens = alone(seeded(prompt(1), 7)).front().tokens();
  EXPECT_EQ(tokens.size(), 32U);
  EXPECT_EQ(under_load(seeded(prompt(1), 7)).front().tokens(), tokens);
  EXPECT_NE(alone(seeded(prompt(1), 8)).front().tokens(), tokens);
  EXPECT_NE(alone(greedy(prompt(1), 32)).front().tokens(), tokens);
}

TEST_F(RealModel, GivesThreeChoicesThatDifferAndRepeat) {
  GenerateRequest request = seeded(prompt(1), 7);
  request.choice_count = 3;
  const std::vector<Answer> choices = alone(request);
  ASSERT_EQ(choices.size(), 3U);
  std::set<std::vector<Token>> distinct;
  for (const Answer& choice : choices) {
    EXPECT_EQ(choice.finish, FinishReason::kLength);
    EXPECT_EQ(choice.usage.output_count, 32);
    distinct.insert(choice.tokens());
  }
  EXPECT_EQ(distinct.size(), 3U);
  const std::vector<Answer> again = under_load(request);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(again[i].tokens(), choices[i].tokens()) << i;
}

TEST_F(RealModel, ForksGreedyChoicesWithoutChangingThem) {
  const std::vector<Token> expected = alone(greedy(prompt(1))).front().tokens();
  GenerateRequest request = greedy(prompt(1));
  request.choice_count = 3;
  for (const Answer& choice : under_load(std::move(request))) {
    EXPECT_EQ(choice.tokens(), expected);
  }
}

TEST_F(RealModel, EndsAtAnEndTokenButNotBeforeTheMinimum) {
  const std::vector<Token> plain = alone(greedy(prompt(1))).front().tokens();
  GenerateRequest request = greedy(prompt(1));
  request.ignore_end_tokens = false;
  request.end_tokens = {plain[5]};
  const auto first = std::ranges::find(plain, plain[5]) - plain.begin();
  const Answer early = alone(request).front();
  EXPECT_EQ(early.finish, FinishReason::kStop);
  EXPECT_EQ(early.end_token, plain[5]);
  EXPECT_EQ(early.tokens(), std::vector<Token>(plain.begin(), plain.begin() + first + 1));
  EXPECT_EQ(early.usage.output_count, first + 1);

  constexpr int kMinimum = 20;
  request.sampling.output_count_min = kMinimum;
  const std::vector<Token> late = under_load(request).front().tokens();
  ASSERT_GE(late.size(), std::size_t{kMinimum});
  EXPECT_EQ(std::find(late.begin(), late.begin() + kMinimum, plain[5]), late.begin() + kMinimum);
}

TEST_F(RealModel, TellsLogProbabilitiesThatAreOnesOfTheWholeVocabulary) {
  GenerateRequest request = greedy(prompt(0), 4);
  const int vocabulary = house().bundle->vocabulary_limit;
  request.sampling.logprob_count = vocabulary;
  const Answer answer = under_load(request).front();
  ASSERT_EQ(answer.sampled.size(), 4U);
  for (const SampledToken& sampled : answer.sampled) {
    ASSERT_EQ(sampled.top.size(), static_cast<std::size_t>(vocabulary));
    double sum = 0.0;
    std::set<Token> ids;
    for (const TokenLogprob& entry : sampled.top) {
      sum += std::exp(double{entry.logprob});
      ids.insert(entry.token);
    }
    EXPECT_EQ(ids.size(), sampled.top.size());
    EXPECT_LE(sum, 1.0 + 1e-6);
    EXPECT_GT(sum, 0.999);
    EXPECT_TRUE(
        std::ranges::is_sorted(sampled.top, std::ranges::greater{}, &TokenLogprob::logprob));
    EXPECT_EQ(sampled.top.front().token, sampled.token);
    EXPECT_EQ(sampled.top.front().logprob, sampled.logprob);
  }

  // They are the model's: log softmax of the logits after the prompt.
  const std::vector<Token> tokens = prompt(0);
  auto worker = make_text_worker(*house().bundle, house().device->ops(), std::ssize(tokens));
  ASSERT_TRUE(worker) << worker.error().message();
  std::vector<float> last;
  const Status status = (*worker)->evaluate_text(
      tokens, 64, [&](std::size_t, std::int32_t, std::span<const float> logits) {
        last.assign(logits.begin(), logits.end());
      });
  ASSERT_TRUE(status.ok()) << status.message();
  double sum = 0.0;
  for (const float logit : last) sum += std::exp(double{logit});
  for (std::size_t i = 0; i < 100; ++i) {
    const TokenLogprob& entry = answer.sampled.front().top[i];
    const double logit{last[static_cast<std::size_t>(entry.token)]};
    EXPECT_NEAR(entry.logprob, logit - std::log(sum), 1e-4) << "place " << i;
  }
}

TEST_F(RealModel, EndsWhereTheReaderFoundAStopString) {
  const std::vector<Token> plain = alone(greedy(prompt(1), 200)).front().tokens();
  const auto fresh = engine();
  Reading reading(fresh->generate(greedy(prompt(1), 200)), 1);
  constexpr int kKept = 10;
  bool stopped = false;
  while (reading.poll()) {
    if (!stopped && reading.answers().front().sampled.size() >= kKept + 2) {
      reading.stream().finish(0, kKept);
      stopped = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Answer& answer = reading.answers().front();
  ASSERT_TRUE(stopped);
  EXPECT_EQ(answer.finish, FinishReason::kStop);
  EXPECT_FALSE(answer.end_token.has_value());
  EXPECT_EQ(answer.usage.output_count, kKept);
  EXPECT_LT(answer.sampled.size(), 200U);
  EXPECT_TRUE(std::equal(answer.sampled.begin(), answer.sampled.end(), plain.begin(),
                         [](const SampledToken& a, Token b) { return a.token == b; }));
  // Nothing stays behind.
  EXPECT_EQ(fresh->stats().running_count, 0);
}

}  // namespace
}  // namespace kun
