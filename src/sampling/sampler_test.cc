// The sampler against a naive reference (doubles, full sorts), against the distributions it claims,
// and on rows that no healthy model writes.
#include "sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "sampling/random.h"

namespace kun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(std::mt19937_64& random, std::size_t count, float deviation) {
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

SamplingRow row_of(const SamplingParams& params, const std::vector<Token>& history,
                   std::int32_t prompt_count, std::uint32_t choice = 0) {
  return {&params, history, prompt_count, choice};
}

Token sample_one(const std::vector<float>& logits, const SamplingParams& params,
                 const std::vector<Token>& history = {0}, std::uint32_t choice = 0) {
  Sampler sampler;
  const auto token = sampler.sample(logits, row_of(params, history, 1, choice));
  EXPECT_TRUE(token.has_value());
  return token.has_value() ? token->token : -1;
}

// --- The naive reference ------------------------------------------------------------------------

std::vector<double> reference_logits(const std::vector<float>& logits, const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  std::vector<double> values(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) {
    values[static_cast<std::size_t>(token)] += double{bias};
  }
  const auto output = row.history.subspan(static_cast<std::size_t>(row.prompt_count));
  if (std::ssize(output) < params.output_count_min) {
    for (const Token token : params.end_tokens) {
      values[static_cast<std::size_t>(token)] = -std::numeric_limits<double>::infinity();
    }
  }
  const std::set<Token> distinct(row.history.begin(), row.history.end());
  for (const Token token : distinct) {
    double& value = values[static_cast<std::size_t>(token)];
    const double r{params.repetition_penalty};
    value = value > 0.0 ? value / r : value * r;
    const auto count = std::ranges::count(output, token);
    value -= double{params.frequency_penalty} * static_cast<double>(count);
    if (count > 0) value -= double{params.presence_penalty};
  }
  return values;
}

// Probabilities after every filter; 0 for what was filtered away.
std::vector<double> reference_distribution(const std::vector<float>& logits,
                                           const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  const std::vector<double> values = reference_logits(logits, row);
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return values[a] > values[b]; });
  if (params.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
  }

  const double max = values[order.front()];
  std::vector<double> weights;
  for (const std::size_t id : order) {
    weights.push_back(std::exp((values[id] - max) / double{params.temperature}));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0.0;
  std::size_t kept = 0;
  while (kept < weights.size() &&
         (kept == 0 || params.top_p >= 1.0F || before < double{params.top_p} * total)) {
    before += weights[kept++];
  }
  while (kept > 1 && weights[kept - 1] < double{params.min_p}) --kept;
  total = std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept), 0.);

  std::vector<double> probabilities(values.size(), 0.0);
  for (std::size_t i = 0; i < kept; ++i) probabilities[order[i]] = weights[i] / total;
  return probabilities;
}

Token reference_draw(const std::vector<double>& probabilities, double point) {
  double sum = 0.0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] <= 0.0) continue;
    last = i;
    sum += probabilities[i];
    if (sum > point) break;
  }
  return static_cast<Token>(last);
}

SamplingParams random_params(std::mt19937_64& random, std::size_t vocabulary) {
  const auto pick = [&](auto... values) {
    const std::array options{values...};
    return options[random() % options.size()];
  };
  const auto token = [&] { return static_cast<Token>(random() % vocabulary); };
  SamplingParams params;
  params.temperature = pick(0.3F, 0.7F, 1.0F, 2.0F);
  params.top_k = pick(0, 0, 1, 3, 40, 5000);
  params.top_p = pick(1.0F, 1.0F, 0.95F, 0.5F, 0.01F);
  params.min_p = pick(0.0F, 0.0F, 0.05F, 0.9F);
  params.repetition_penalty = pick(1.0F, 1.0F, 1.2F, 0.8F);
  params.frequency_penalty = pick(0.0F, 0.0F, 0.5F, -0.5F);
  params.presence_penalty = pick(0.0F, 0.0F, 1.5F, -1.0F);
  params.output_count_min = pick(0, 0, 4, 100);
  params.end_tokens = {token(), token()};
  if (random() % 3 == 0) params.logit_bias = {{token(), 5.0F}, {token(), -100.0F}};
  params.seed = random();
  return params;
}

TEST(Sampler, AgreesWithANaiveReferenceOnRandomRowsAndParameters) {
  std::mt19937_64 random(7);
  Sampler sampler;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t vocabulary = 3 + random() % (round % 10 == 0 ? 6000 : 200);
    const float deviation = round % 3 == 0 ? 0.1F : 4.0F;
    const std::vector<float> logits = random_logits(random, vocabulary, deviation);
    const SamplingParams params = random_params(random, vocabulary);
    std::vector<Token> history(1 + random() % 20);
    for (Token& token : history) token = static_cast<Token>(random() % vocabulary);
    const auto prompt_count = static_cast<std::int32_t>(1 + random() % history.size());
    const auto choice = static_cast<std::uint32_t>(random() % 4);
    const SamplingRow row = row_of(params, history, prompt_count, choice);

    const std::vector<double> probabilities = reference_distribution(logits, row);
    const double point = uniform(params.seed, choice, history.size());
    const auto sampled = sampler.sample(logits, row);
    ASSERT_TRUE(sampled.has_value());
    ASSERT_EQ(sampled->token, reference_draw(probabilities, point)) << "round " << round;
  }
}

TEST(Sampler, IsGreedyAtTemperatureZeroWithTheLowestIdOfTies) {
  SamplingParams params;
  params.temperature = 0.0F;
  EXPECT_EQ(sample_one({1.0F, 7.0F, 3.0F, 7.0F}, params), 1);
  EXPECT_EQ(sample_one({-3.0F, -1.0F, -1.0F}, params), 1);
  EXPECT_EQ(sample_one({-1.0F, -0.0F, 0.0F}, params), 1);  // signed zeros are equal
  EXPECT_EQ(sample_one({-kInfinity, -5.0F}, params), 1);
  params.temperature = 9e-6F;
  EXPECT_EQ(sample_one({1.0F, 7.0F, 7.0F}, params), 1);
}

TEST(Sampler, GreedyHonoursBiasPenaltiesAndMinimumOutput) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.logit_bias = {{2, 10.0F}, {-1, 99.0F}, {1000, 99.0F}};  // ids that name no row
  EXPECT_EQ(sample_one({3.0F, 2.0F, 1.0F}, params), 2);

  params = {};
  params.temperature = 0.0F;
  params.end_tokens = {0};
  params.output_count_min = 2;
  EXPECT_EQ(sample_one({3.0F, 2.0F, 1.0F}, params, {9, 5}), 1);     // one output so far
  EXPECT_EQ(sample_one({3.0F, 2.0F, 1.0F}, params, {9, 5, 5}), 0);  // two

  params = {};
  params.temperature = 0.0F;
  params.repetition_penalty = 2.0F;
  EXPECT_EQ(sample_one({3.0F, 2.0F, 1.0F}, params, {0}), 1);         // 1.5 2 1
  EXPECT_EQ(sample_one({-1.0F, -1.5F, -9.0F}, params, {0, 70}), 1);  // -2 -1.5 -9
}

TEST(Sampler, FrequencyAndPresenceCountTheOutputOnly) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.frequency_penalty = 0.6F;
  EXPECT_EQ(sample_one({2.0F, 1.0F}, params, {0}), 0);        // token 0 is prompt
  EXPECT_EQ(sample_one({2.0F, 1.0F}, params, {5, 0}), 0);     // 1.4
  EXPECT_EQ(sample_one({2.0F, 1.0F}, params, {5, 0, 0}), 1);  // 0.8
  params.frequency_penalty = 0.0F;
  params.presence_penalty = 0.9F;
  EXPECT_EQ(sample_one({2.0F, 1.0F}, params, {5, 0, 0, 0}), 0);  // 1.1, however often
  params.presence_penalty = 1.1F;
  EXPECT_EQ(sample_one({2.0F, 1.0F}, params, {5, 0}), 1);
}

// Pearson's statistic of `draws` draws; `probabilities` 0 must never be drawn.
double chi_square(const std::vector<float>& logits, SamplingParams params,
                  const std::vector<double>& probabilities, int draws) {
  std::vector<int> counts(logits.size(), 0);
  Sampler sampler;
  const std::vector<Token> history{0};
  for (int i = 0; i < draws; ++i) {
    params.seed = static_cast<std::uint64_t>(i) * 977U + 13U;
    const auto token = sampler.sample(logits, row_of(params, history, 1));
    ++counts[static_cast<std::size_t>(token->token)];
  }
  double statistic = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (probabilities[i] <= 0.0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " was filtered away";
      continue;
    }
    statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  return statistic;
}

TEST(Sampler, DrawsFromTheSoftmaxAtItsTemperature) {
  const std::vector<float> logits{1.0F, 0.5F, 0.0F, -0.5F, -1.0F, 2.0F, 1.5F, -2.0F};
  const std::vector<Token> history{0};
  for (const float temperature : {0.5F, 1.0F, 1.7F}) {
    SamplingParams params;
    params.temperature = temperature;
    const auto expected = reference_distribution(logits, row_of(params, history, 1));
    // 7 degrees of freedom: 24.3 is the 99.9th percentile.
    EXPECT_LT(chi_square(logits, params, expected, 40'000), 24.3) << temperature;
  }
}

TEST(Sampler, DrawsFromTheFilteredDistribution) {
  const std::vector<float> logits{1.0F, 0.5F, 0.0F, -0.5F, -1.0F, 2.0F, 1.5F, -2.0F};
  const std::vector<Token> history{0};
  SamplingParams top_k;
  top_k.top_k = 3;
  SamplingParams top_p;
  top_p.top_p = 0.8F;
  SamplingParams min_p;
  min_p.min_p = 0.2F;
  for (const SamplingParams& params : {top_k, top_p, min_p}) {
    const auto expected = reference_distribution(logits, row_of(params, history, 1));
    const auto kept = std::ranges::count_if(expected, [](double p) { return p > 0.0; });
    EXPECT_GE(kept, 3);
    EXPECT_LT(kept, 8);
    EXPECT_LT(chi_square(logits, params, expected, 40'000), 24.3);
  }
}

TEST(Sampler, ChoicesAndPositionsDrawIndependently) {
  // With two equally likely tokens, two independent sequences of draws agree half of the time.
  const std::vector<float> logits{0.0F, 0.0F};
  SamplingParams params;
  params.seed = 42;
  Sampler sampler;
  std::vector<Token> history{0};
  int agreed = 0;
  int ones = 0;
  for (int i = 0; i < 4000; ++i) {
    history.push_back(0);
    const auto a = sampler.sample(logits, row_of(params, history, 1, 0));
    const auto b = sampler.sample(logits, row_of(params, history, 1, 1));
    agreed += a->token == b->token ? 1 : 0;
    ones += a->token;
  }
  EXPECT_NEAR(agreed, 2000, 110);  // 3.5 standard deviations
  EXPECT_NEAR(ones, 2000, 110);
}

TEST(Sampler, GivesTheSameTokenWhateverItSampledBefore) {
  std::mt19937_64 random(11);
  Sampler used;
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = random_logits(random, 3000, 2.0F);
    const SamplingParams params = random_params(random, logits.size());
    const std::vector<Token> history{1, 2, 3, static_cast<Token>(round)};
    Sampler fresh;
    const SamplingRow row = row_of(params, history, 2);
    EXPECT_EQ(used.sample(logits, row)->token, fresh.sample(logits, row)->token);
  }
}

TEST(Sampler, AFilterThatDropsNothingChangesNothing) {
  std::mt19937_64 random(12);
  const std::vector<float> logits = random_logits(random, 5000, 1.0F);
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SamplingParams plain;
    plain.seed = seed;
    SamplingParams filtered = plain;
    filtered.top_k = 5000;
    filtered.min_p = 1e-30F;
    EXPECT_EQ(sample_one(logits, plain), sample_one(logits, filtered));
  }
}

TEST(Sampler, CallsRowsThatAreNotFiniteCorrupted) {
  Sampler sampler;
  const std::vector<Token> history{0};
  for (const float temperature : {0.0F, 1.0F}) {
    SamplingParams params;
    params.temperature = temperature;
    const SamplingRow row = row_of(params, history, 1);
    for (const float bad : {kNan, -kNan, kInfinity}) {
      for (const std::size_t place : {0U, 5U, 99U}) {
        std::vector<float> logits(100, 1.0F);
        logits[place] = bad;
        EXPECT_FALSE(sampler.sample(logits, row).has_value());
      }
    }
    EXPECT_FALSE(sampler.sample(std::vector<float>(100, -kInfinity), row).has_value());
    std::vector<float> one(100, -kInfinity);
    one[17] = -3.0F;
    EXPECT_EQ(sampler.sample(one, row)->token, 17);
  }
}

TEST(Sampler, NeverChoosesOrListsRowsThatNameNoToken) {
  Sampler sampler(4);
  std::vector<float> logits{0.0F, 1.0F, 0.0F, 0.0F, 50.0F, 60.0F};
  const std::vector<Token> history{0};
  for (const float temperature : {0.0F, 1.0F, 5.0F}) {
    SamplingParams params;
    params.temperature = temperature;
    params.logprob_count = 20;
    for (params.seed = 0; params.seed < 100; ++params.seed) {
      const auto token = sampler.sample(logits, row_of(params, history, 1));
      ASSERT_LT(token->token, 4);
      ASSERT_EQ(token->top.size(), 4U);
    }
  }
  logits[5] = kNan;  // a model that writes NaN there is as broken as elsewhere
  SamplingParams params;
  EXPECT_FALSE(sampler.sample(logits, row_of(params, history, 1)).has_value());
}

TEST(Sampler, LogprobsAreOfTheUnmodifiedDistribution) {
  std::mt19937_64 random(5);
  const std::vector<float> logits = random_logits(random, 2000, 3.0F);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit});

  SamplingParams params;
  params.temperature = 0.3F;
  params.top_k = 2;
  params.logit_bias = {{7, 100.0F}};
  params.logprob_count = 5;
  const std::vector<Token> history{0};
  Sampler sampler;
  const auto token = sampler.sample(logits, row_of(params, history, 1));
  ASSERT_EQ(token->token, 7);
  EXPECT_NEAR(token->logprob, double{logits[7]} - std::log(sum), 2e-6);

  std::vector<std::pair<float, Token>> sorted;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    sorted.emplace_back(-logits[i], static_cast<Token>(i));
  }
  std::ranges::sort(sorted);
  ASSERT_EQ(token->top.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(token->top[i].token, sorted[i].second);
    EXPECT_NEAR(token->top[i].logprob, -double{sorted[i].first} - std::log(sum), 2e-6);
  }
}

TEST(Sampler, TopLogprobsOfTiesComeInTheOrderOfIds) {
  SamplingParams params;
  params.logprob_count = 3;
  Sampler sampler;
  const std::vector<Token> history{0};
  const std::vector<float> logits{0.0F, 1.0F, 1.0F, 0.0F, 1.0F, 1.0F};
  const auto token = sampler.sample(logits, row_of(params, history, 1));
  ASSERT_EQ(token->top.size(), 3U);
  EXPECT_EQ(token->top[0].token, 1);
  EXPECT_EQ(token->top[1].token, 2);
  EXPECT_EQ(token->top[2].token, 4);
}

TEST(Sampler, LogprobCountZeroListsNothingButTheChosenToken) {
  SamplingParams params;
  params.logprob_count = 0;
  Sampler sampler;
  const std::vector<Token> history{0};
  const auto token = sampler.sample(std::vector<float>{0.0F, 0.0F}, row_of(params, history, 1));
  EXPECT_NEAR(token->logprob, std::log(0.5), 1e-6);
  EXPECT_TRUE(token->top.empty());
}

TEST(Sampler, SurvivesAbsurdParameters) {
  const std::vector<float> logits{0.0F, 1.0F, 2.0F, 3.0F};
  const std::vector<Token> history{-7, 1'000'000, 2};
  Sampler sampler;
  for (const float value : {kNan, kInfinity, -kInfinity, 0.0F, -1.0F, 1e30F, 1e-30F}) {
    for (int field = 0; field < 6; ++field) {
      SamplingParams params;
      params.logprob_count = 1'000'000;
      float* fields[] = {&params.temperature,
                         &params.top_p,
                         &params.min_p,
                         &params.repetition_penalty,
                         &params.frequency_penalty,
                         &params.presence_penalty};
      *fields[field] = value;
      const auto token = sampler.sample(logits, row_of(params, history, 2));
      if (!token.has_value()) continue;
      EXPECT_GE(token->token, 0);
      EXPECT_LT(token->token, 4);
    }
  }
}

TEST(Sampler, FindsLargeSelectionsToo) {
  // Above the heap's size top-k partitions; both must keep exactly the k likeliest.
  std::vector<float> logits(10'000);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>((i * 7919) % 10'000) * 1e-6F;  // nearly flat
  }
  const std::vector<Token> history{0};
  Sampler sampler;
  for (const int k : {1000, 1024, 1025, 9999}) {
    SamplingParams params;
    params.top_k = k;
    for (params.seed = 0; params.seed < 200; ++params.seed) {
      const auto token = sampler.sample(logits, row_of(params, history, 1));
      const auto rank = (static_cast<std::size_t>(token->token) * 7919) % 10'000;
      ASSERT_GE(rank, 10'000U - static_cast<std::size_t>(k));
    }
  }
}

TEST(Sampler, ChoosesOnlyWhatTheMaskAllowsWhateverTheParameters) {
  std::mt19937_64 random(3);
  const std::vector<Token> history{0, 5, 7};
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = random_logits(random, 1000, 4.0F);
    std::vector<std::uint32_t> mask(32, 0);
    std::vector<Token> allowed;
    for (std::uint32_t id = 0; id < 1000; ++id) {
      const bool whole_word = id / 32 == 4 || (round % 3 == 0 && id / 32 == 20);
      if (!whole_word && random() % 50 != 0) continue;
      mask[id / 32] |= std::uint32_t{1} << (id % 32);
      allowed.push_back(static_cast<Token>(id));
    }
    SamplingParams params;
    params.temperature = round % 4 == 0 ? 0.0F : 1.0F;
    params.top_k = round % 5 == 0 ? 900 : 0;
    params.top_p = round % 7 == 0 ? 0.9F : 1.0F;
    params.repetition_penalty = round % 2 == 0 ? 1.0F : 1.3F;
    params.seed = static_cast<std::uint64_t>(round);
    SamplingRow row = row_of(params, history, 1);
    row.mask = mask;
    Sampler sampler;
    const auto token = sampler.sample(logits, row);
    ASSERT_TRUE(token.has_value());
    EXPECT_TRUE(std::ranges::find(allowed, token->token) != allowed.end()) << token->token;
    if (params.temperature > 0.0F || params.repetition_penalty != 1.0F) continue;
    for (const Token other : allowed) {
      EXPECT_GE(logits[static_cast<std::size_t>(token->token)],
                logits[static_cast<std::size_t>(other)]);
    }
  }
}

TEST(Sampler, TellsAStarvedRowFromACorruptedOne) {
  const std::vector<Token> history{0};
  const std::vector<std::uint32_t> none = {0};
  const std::vector<std::uint32_t> one = {4};
  SamplingParams params;
  std::vector<float> logits(5, 1.0F);
  Sampler sampler;
  SamplingRow row = row_of(params, history, 1);
  row.mask = none;
  EXPECT_FALSE(sampler.sample(logits, row).has_value());
  EXPECT_TRUE(sampler.starved());
  row.mask = one;
  EXPECT_EQ(sampler.sample(logits, row)->token, 2);
  EXPECT_FALSE(sampler.starved());
  params.logit_bias = {{2, -kInfinity}};
  EXPECT_FALSE(sampler.sample(logits, row).has_value());
  EXPECT_TRUE(sampler.starved());
  logits[4] = kNan;  // of the model, whether or not the mask hides it
  EXPECT_FALSE(sampler.sample(logits, row).has_value());
  EXPECT_FALSE(sampler.starved());
}

}  // namespace
}  // namespace kun
