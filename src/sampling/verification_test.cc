// Two claims. The text is the one that sampling without drafts gives, token by token, log
// probabilities included, whatever was guessed and whatever the request asks for. And, looked at
// from outside, with no knowledge of how draws are made, the distribution is that of the model.
#include "sampling/verification.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

namespace kun {
namespace {

constexpr int kVocabulary = 40;

// A model whose logits are a function of all tokens before.
std::vector<float> logits_after(std::span<const Token> history) {
  std::uint64_t state = 88172645463325252U;
  for (const Token token : history) state = (state ^ std::uint64_t(token)) * 0x9E3779B97F4A7C15U;
  std::mt19937_64 random(state);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> logits;
  for (int i = 0; i < kVocabulary; ++i) logits.push_back(normal(random));
  return logits;
}

SamplingRow row_of(const SamplingParams& params, std::span<const Token> history, int prompt_count,
                   Token draft = kNoDraft) {
  SamplingRow row;
  row.params = &params;
  row.history = history;
  row.prompt_count = prompt_count;
  row.choice = 1;
  row.draft = draft;
  return row;
}

// One step: verifies `drafts` behind `text` and returns the tokens it gives.
SliceResult verify(Sampler& sampler, const SamplingParams& params, std::span<const Token> text,
                   int prompt_count, std::span<const Token> drafts) {
  std::vector<Token> all(text.begin(), text.end());
  all.insert(all.end(), drafts.begin(), drafts.end());
  Verification verification(sampler);
  SliceResult result;
  for (std::size_t i = 0; i <= drafts.size(); ++i) {
    const auto history = std::span<const Token>(all).first(text.size() + i);
    const Token draft = i < drafts.size() ? drafts[i] : kNoDraft;
    verification.take(logits_after(history), row_of(params, history, prompt_count, draft), result);
  }
  return result;
}

std::vector<SamplingParams> many_params() {
  std::vector<SamplingParams> all(8);
  all[0].temperature = 0.0F;
  all[1].temperature = 0.0F;
  all[1].repetition_penalty = 1.7F;
  all[1].frequency_penalty = 0.9F;
  all[1].logprob_count = 3;
  all[2].temperature = 1.3F;
  all[3].temperature = 0.7F;
  all[3].top_p = 0.8F;
  all[3].logprob_count = 0;
  all[4].top_k = 5;
  all[4].presence_penalty = 1.5F;
  all[5].min_p = 0.1F;
  all[5].output_count_min = 20;
  all[5].end_tokens = {3, 4, 5, 6, 7};
  all[6].logit_bias = {{2, 4.0F}, {9, -100.0F}};
  all[6].frequency_penalty = 0.5F;
  all[7].temperature = 2.0F;
  all[7].top_k = 12;
  all[7].top_p = 0.9F;
  all[7].repetition_penalty = 0.6F;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].seed = 1000 + i;
  return all;
}

void expect_equal(const SampledToken& a, const SampledToken& b) {
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.logprob, b.logprob);
  ASSERT_EQ(a.top.size(), b.top.size());
  for (std::size_t i = 0; i < a.top.size(); ++i) {
    EXPECT_EQ(a.top[i].token, b.top[i].token);
    EXPECT_EQ(a.top[i].logprob, b.top[i].logprob);
  }
}

TEST(Verification, GivesTheTextThatSamplingWithoutDraftsGives) {
  constexpr std::size_t kOutputs = 400;
  const std::vector<Token> prompt = {1, 2, 3, 2, 1};
  std::mt19937 random(5);
  for (const SamplingParams& params : many_params()) {
    Sampler sampler;
    std::vector<Token> plain = prompt;
    std::vector<SampledToken> expected;
    while (expected.size() < kOutputs) {
      expected.push_back(*sampler.sample(logits_after(plain), row_of(params, plain, 5)));
      plain.push_back(expected.back().token);
    }
    std::vector<Token> text = prompt;
    std::vector<SampledToken> given;
    int accepted = 0;
    while (given.size() + 8 < kOutputs) {
      // Right ones, found in the plain text, with wrong ones among them.
      std::vector<Token> drafts;
      for (std::size_t i = 0; i < random() % 7; ++i) {
        const bool right = random() % 4 != 0;
        drafts.push_back(right ? plain[text.size() + i]
                               : static_cast<Token>(random() % kVocabulary));
      }
      const SliceResult result = verify(sampler, params, text, 5, drafts);
      ASSERT_FALSE(result.corrupted);
      ASSERT_GE(result.tokens.size(), 1U);
      ASSERT_LE(result.tokens.size(), drafts.size() + 1);
      accepted += static_cast<int>(result.tokens.size()) - 1;
      for (const SampledToken& token : result.tokens) {
        text.push_back(token.token);
        given.push_back(token);
      }
    }
    for (std::size_t i = 0; i < given.size(); ++i) expect_equal(given[i], expected[i]);
    EXPECT_GT(accepted, 100);
  }
}

TEST(Verification, StopsAtTheFirstWrongDraftAndLooksNoFurther) {
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  Sampler sampler;
  Verification verification(sampler);
  const std::vector<float> says_two = {0, 0, 9, 0};
  const std::vector<float> broken = {0, std::nanf(""), 0, 0};
  const std::vector<Token> history = {1, 1};
  SliceResult first;
  SliceResult second;
  verification.take(says_two, row_of(greedy, history, 1, 2), first);
  verification.take(says_two, row_of(greedy, history, 1, 3), first);  // wrong
  verification.take(broken, row_of(greedy, history, 1, 2), first);
  verification.take(broken, row_of(greedy, history, 1), first);
  ASSERT_EQ(first.tokens.size(), 2U);
  EXPECT_EQ(first.tokens[1].token, 2);
  EXPECT_FALSE(first.corrupted);
  // The next slice begins anew.
  verification.take(says_two, row_of(greedy, history, 1), second);
  EXPECT_EQ(second.tokens.size(), 1U);
  SliceResult third;
  verification.take(broken, row_of(greedy, history, 1, 2), third);
  verification.take(says_two, row_of(greedy, history, 1), third);
  EXPECT_TRUE(third.corrupted);
  EXPECT_TRUE(third.tokens.empty());
}

// --- The distribution ---------------------------------------------------------------------------

// The distribution of a row by the definitions: penalties over `history` behind `prompt_count`,
// temperature, then the top_k likeliest. In double, from nothing of the sampler's.
std::vector<double> distribution(const SamplingParams& params, std::span<const Token> history,
                                 std::size_t prompt_count) {
  const std::vector<float> logits = logits_after(history);
  std::vector<double> weights(logits.begin(), logits.end());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto outputs = history.subspan(prompt_count);
    const auto count = std::ranges::count(outputs, static_cast<Token>(i));
    weights[i] -= params.frequency_penalty * static_cast<double>(count);
    weights[i] /= params.temperature;
  }
  std::vector<double> sorted = weights;
  std::ranges::sort(sorted, std::greater{});
  const double least = sorted[static_cast<std::size_t>(params.top_k) - 1];
  double sum = 0.0;
  for (double& weight : weights) {
    weight = weight >= least ? std::exp(weight - sorted.front()) : 0.0;
    sum += weight;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Pearson's statistic; and a bound that a chi-square variable of k degrees exceeds with probability
// e^-x at most: k + 2 sqrt(k x) + 2 x (Laurent and Massart, 2000, lemma 1).
void expect_distributed(const std::vector<int>& counts, const std::vector<double>& expected) {
  constexpr double kX = 16.0;  // 1e-7
  double total = 0.0;
  for (const int count : counts) total += count;
  ASSERT_GT(total, 1000);
  double statistic = 0.0;
  int degrees = -1;
  double rest_count = 0.0;
  double rest_expected = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (expected[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " is filtered out";
      continue;
    }
    const double mean = expected[i] * total;
    if (mean < 10.0) {  // the approximation needs some in each cell
      rest_count += counts[i];
      rest_expected += mean;
      continue;
    }
    statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
    ++degrees;
  }
  if (rest_expected > 10.0) {
    statistic += (rest_count - rest_expected) * (rest_count - rest_expected) / rest_expected;
    ++degrees;
  }
  EXPECT_LT(statistic, degrees + 2.0 * std::sqrt(degrees * kX) + 2.0 * kX);
}

TEST(Verification, KeepsTheModelsDistributionWhateverIsDrafted) {
  constexpr int kRuns = 40'000;
  const std::vector<Token> text = {7, 7, 8};
  SamplingParams params;
  params.temperature = 0.9F;
  params.top_k = 12;
  params.frequency_penalty = 0.4F;
  const std::vector<double> first = distribution(params, text, 2);
  std::vector<Token> by_chance(kVocabulary);
  for (Token i = 0; i < kVocabulary; ++i) by_chance[static_cast<std::size_t>(i)] = i;
  std::ranges::sort(by_chance, std::greater{},
                    [&](Token id) { return first[static_cast<std::size_t>(id)]; });
  // The likeliest, a middling one, and one that cannot be said.
  for (const Token draft : {by_chance[0], by_chance[4], by_chance[30]}) {
    const std::vector<Token> drafts = {draft, 7};
    std::vector<Token> longer = text;
    longer.push_back(draft);
    std::vector<int> first_counts(kVocabulary);
    std::vector<int> rejected_counts(kVocabulary);
    std::vector<int> second_counts(kVocabulary);
    Sampler sampler;
    for (int run = 0; run < kRuns; ++run) {
      params.seed = static_cast<std::uint64_t>(run) * 7919 + static_cast<std::uint64_t>(draft);
      const SliceResult result = verify(sampler, params, text, 2, drafts);
      const auto token = static_cast<std::size_t>(result.tokens.front().token);
      ++first_counts[token];
      if (result.tokens.size() == 1) ++rejected_counts[token];
      if (result.tokens.size() > 1) {
        ++second_counts[static_cast<std::size_t>(result.tokens[1].token)];
      }
    }
    expect_distributed(first_counts, first);
    // What is said instead of a wrong draft: the rest of the distribution.
    std::vector<double> rest = first;
    const double chance = std::exchange(rest[static_cast<std::size_t>(draft)], 0.0);
    for (double& weight : rest) weight /= 1.0 - chance;
    expect_distributed(rejected_counts, rest);
    if (chance > 0.0) expect_distributed(second_counts, distribution(params, longer, 2));
    // And a draft is accepted as often as it may be: five standard deviations.
    const double accepted = first_counts[static_cast<std::size_t>(draft)];
    EXPECT_NEAR(accepted / kRuns, chance, 5.0 * std::sqrt(chance * (1.0 - chance) / kRuns) + 1e-12);
  }
}

}  // namespace
}  // namespace kun
