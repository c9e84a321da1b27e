// Speculation on real logits: the same tokens with drafts as without, alone and in company, greedy
// and seeded, with log probabilities that are equal to the last bit.
#include <algorithm>
#include <memory>
#include <set>

#include "house.h"

namespace kun {
namespace {

constexpr int kOutputCount = 96;

class RealSpeculation : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (has_model()) house_ = std::make_unique<House>(DeviceOptions{});
  }
  static void TearDownTestSuite() { house_.reset(); }
  void SetUp() override {
    if (!has_model()) GTEST_SKIP() << kNoModel;
  }

  static std::unique_ptr<Engine> engine(DraftMethod method, bool adaptive = false) {
    EngineSettings settings;
    settings.kv_cache_bytes = std::int64_t{256} << 20;
    settings.tokens_per_step_max = 96;  // prompts come in chunks beside others' drafts
    SpeculativeConfig& config = settings.speculator.config;
    config.method = method;
    config.draft_count_max = method == DraftMethod::kNone ? 0 : 4;
    config.ngram = {.longest = 4, .shortest = 2};
    config.adaptive = adaptive;
    if (method == DraftMethod::kDraftModel) {
      auto draft = load_bundle(std::getenv("KUN_MODEL"), *house_->device, {});
      CHECK(draft.has_value());
      settings.speculator.draft = *std::move(draft);
    }
    return house_->engine(settings);
  }

  // Texts of several kinds: what repeats, what does not, and lists.
  static std::vector<GenerateRequest> requests(float temperature) {
    const std::vector<std::string> prompts = {
        "The capital of France is",
        "one, two, three, four, one, two, three, four, one, two,",
        "int add_one(int x) { return x + 1; }\nint add_two(int x) { return x + 2; }\nint add_three",
        "Here is the play again, word for word.\n\n" + play_text().substr(0, 500) +
            "\n\nHere is the play again, word for word.\n\n" + play_text().substr(0, 60),
        play_text().substr(1200, 700),
    };
    std::vector<GenerateRequest> requests;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      GenerateRequest request;
      request.prompt = house_->encode(prompts[i]);
      request.output_count_max = kOutputCount;
      request.ignore_end_tokens = true;
      request.sampling.temperature = temperature;
      request.sampling.seed = 100 + i;
      request.sampling.logprob_count = 2;
      if (temperature > 0.0F) request.sampling.top_p = 0.95F;
      if (i % 2 == 1) request.sampling.frequency_penalty = 0.2F;
      if (i == 4) request.choice_count = 2;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  static void expect_equal(const std::vector<std::vector<Answer>>& given,
                           const std::vector<std::vector<Answer>>& expected) {
    ASSERT_EQ(given.size(), expected.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
      for (std::size_t choice = 0; choice < given[i].size(); ++choice) {
        const Answer& a = given[i][choice];
        const Answer& b = expected[i][choice];
        ASSERT_EQ(a.tokens(), b.tokens()) << "request " << i << " choice " << choice;
        EXPECT_EQ(a.usage.output_count, b.usage.output_count);
        for (std::size_t t = 0; t < a.sampled.size(); ++t) {
          EXPECT_EQ(a.sampled[t].logprob, b.sampled[t].logprob);
          ASSERT_EQ(a.sampled[t].top.size(), 2U);
          EXPECT_EQ(a.sampled[t].top[1].token, b.sampled[t].top[1].token);
          EXPECT_EQ(a.sampled[t].top[1].logprob, b.sampled[t].top[1].logprob);
        }
      }
    }
  }

  static inline std::unique_ptr<House> house_;
};

// Who drafts, and how warm the sampling is.
class RealDrafts : public RealSpeculation,
                   public testing::WithParamInterface<std::pair<DraftMethod, float>> {};

TEST_P(RealDrafts, ChangeNoTokenAndNoLogprob) {
  const auto [method, temperature] = GetParam();
  const auto plain = engine(DraftMethod::kNone);
  const auto expected = run(*plain, requests(temperature));
  const auto together = engine(method);
  expect_equal(run(*together, requests(temperature)), expected);
  const EngineStats stats = together->stats();
  EXPECT_GT(stats.draft_token_count, 200U);
  if (method == DraftMethod::kRandom) {
    EXPECT_LT(stats.accepted_token_count, stats.draft_token_count / 50);
  } else {
    EXPECT_GT(stats.accepted_token_count, 50U);
  }
  // One after the other, on the prefix cache that the first round left behind.
  std::uint64_t output_count = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    auto alone = requests(temperature);
    std::vector<GenerateRequest> one;
    one.push_back(std::move(alone[i]));
    expect_equal(run(*together, std::move(one)), {expected[i]});
    output_count += kOutputCount;
  }
  if (method != DraftMethod::kRandom) {
    EXPECT_LT(together->stats().step_count - stats.step_count, output_count);
  }
}
INSTANTIATE_TEST_SUITE_P(Methods, RealDrafts,
                         testing::Values(std::pair(DraftMethod::kNgram, 0.0F),
                                         std::pair(DraftMethod::kNgram, 0.8F),
                                         std::pair(DraftMethod::kRandom, 0.0F),
                                         std::pair(DraftMethod::kDraftModel, 0.0F),
                                         std::pair(DraftMethod::kDraftModel, 0.9F)),
                         [](const auto& test) {
                           const char* name = test.param.first == DraftMethod::kNgram ? "Ngram"
                                              : test.param.first == DraftMethod::kRandom
                                                  ? "Random"
                                                  : "DraftModel";
                           return std::string(name) +
                                  (test.param.second > 0.0F ? "Seeded" : "Greedy");
                         });

// It draws with the same random numbers, so that even at a high temperature it is always right.
TEST_F(RealSpeculation, AModelThatDraftsForItselfIsAlwaysRight) {
  const auto drafted = engine(DraftMethod::kDraftModel);
  run(*drafted, requests(1.0F));
  const EngineStats stats = drafted->stats();
  EXPECT_GT(stats.draft_token_count, 300U);
  EXPECT_EQ(stats.accepted_token_count, stats.draft_token_count);
}

TEST_F(RealSpeculation, TurnsWrongDraftsDown) {
  const auto adaptive = engine(DraftMethod::kRandom, /*adaptive=*/true);
  run(*adaptive, requests(0.0F));
  const EngineStats stats = adaptive->stats();
  EXPECT_LT(stats.draft_token_count, stats.generated_token_count / 8);
}

}  // namespace
}  // namespace kun
