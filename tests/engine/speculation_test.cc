// Speculation through the whole engine: answers are the same with drafts as without, whoever
// drafts, and a drafter that is wrong, late, greedy or broken harms nobody.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "executor/draft_model.h"
#include "executor/ngram_drafter.h"
#include "house.h"

namespace kun {
namespace {

bool all_blocks_free(const EngineStats& stats) {
  return stats.cache_usage == 0.0;
}

// 60 lines that are nearly alike.
std::string report() {
  std::string text;
  for (int line = 0; line < 60; ++line) {
    text += "entry " + std::to_string(line * 37 % 60) + " is ready for delivery; ";
  }
  return text;
}

std::string script(const std::string& reply, const std::string& head = "") {
  return head + "after \"?\"\nprompt *\n emit \"" + reply + "\"\n";
}

HouseOptions with_drafts(std::unique_ptr<Drafter> drafter, int count = 4, bool adaptive = false) {
  HouseOptions options;
  options.limits.draft_count_max = count;
  options.limits.adaptive_drafts = adaptive;
  options.drafter = std::move(drafter);
  return options;
}

std::unique_ptr<Drafter> ngrams() {
  return std::make_unique<NgramDrafter>(NgramOptions{.longest = 5, .shortest = 3});
}

// Knows the reply, and is right with a given chance.
class Oracle final : public Drafter {
 public:
  Oracle(std::string_view reply, double chance) : reply_(bytes(reply)), chance_(chance) {}

  Status propose(std::span<const DraftWish> wishes,
                 std::vector<std::vector<Token>>& drafts) override {
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      auto place = wishes[i].history.size() - static_cast<std::size_t>(wishes[i].prompt_count);
      for (int j = 0; j < wishes[i].count_max; ++j, ++place) {
        const bool right = std::uniform_real_distribution<double>(0.0, 1.0)(random_) < chance_;
        drafts[i].push_back(right && place < reply_.size() ? reply_[place] : 'x');
      }
    }
    return {};
  }

 private:
  std::vector<Token> reply_;
  double chance_;
  std::mt19937 random_{11};
};

class Broken final : public Drafter {
 public:
  Status propose(std::span<const DraftWish>, std::vector<std::vector<Token>>& drafts) override {
    drafts.front().push_back('x');
    if (++calls_ > 1) ADD_FAILURE() << "asked again after a failure";
    if (throws_) throw std::bad_alloc();
    return internal_error("out of ideas");
  }
  explicit Broken(bool throws) : throws_(throws) {}

 private:
  bool throws_;
  int calls_ = 0;
};

TEST(SpeculativeEngine, SaysTheSameInFewerSteps) {
  const std::string reply = report();
  House plain(script(reply));
  const Answer expected = plain.answer(ask("Well?", 3000));
  ASSERT_EQ(expected.text(), reply);
  const auto plain_steps = plain.engine().stats().step_count;
  House house(script(reply), with_drafts(ngrams()));
  const Answer answer = house.answer(ask("Well?", 3000));
  EXPECT_EQ(answer.tokens, expected.tokens);
  EXPECT_EQ(answer.usage.output_count, expected.usage.output_count);
  EXPECT_EQ(answer.end_token, Token{256});
  ASSERT_TRUE(house.wait_for(
      [&](const EngineStats& stats) { return stats.generated_token_count == reply.size() + 1; }));
  const EngineStats stats = house.engine().stats();
  EXPECT_LT(stats.step_count, plain_steps / 2);
  EXPECT_GT(stats.accepted_token_count, stats.draft_token_count / 2);
  EXPECT_LE(stats.draft_token_count, 4 * stats.draft_count);
  ASSERT_EQ(stats.accepted_by_position.size(), 4U);
  std::uint64_t sum = 0;
  for (const std::uint64_t count : stats.accepted_by_position) sum += count;
  EXPECT_EQ(sum, stats.accepted_token_count);
  EXPECT_TRUE(std::ranges::is_sorted(stats.accepted_by_position, std::greater{}));
}

TEST(SpeculativeEngine, SaysTheSameToManyWithFewBlocksAndSmallSteps) {
  const std::string reply = report();
  for (const double chance : {0.0, 0.5, 0.9, 1.0}) {
    for (const bool adaptive : {false, true}) {
      HouseOptions options = with_drafts(std::make_unique<Oracle>(reply, chance), 3, adaptive);
      options.limits.tokens_per_step_max = 24;
      options.limits.sequences_running_max = 8;
      options.block_count = 150;  // of 16 tokens: one of these answers takes 130
      House house(script(reply), std::move(options));
      std::vector<std::unique_ptr<Reader>> readers;
      for (int i = 0; i < 6; ++i) {
        readers.push_back(std::make_unique<Reader>(house.engine().generate(
            ask(std::string(static_cast<std::size_t>(3 + 9 * i), 'a') + "?", 400 + 40 * i))));
      }
      for (int i = 0; i < 6; ++i) {
        const Answer answer = readers[static_cast<std::size_t>(i)]->read();
        EXPECT_EQ(answer.text(), reply.substr(0, static_cast<std::size_t>(400 + 40 * i)));
        EXPECT_EQ(answer.finish, FinishReason::kLength);
      }
      EXPECT_TRUE(house.wait_for(all_blocks_free));
    }
  }
}

TEST(SpeculativeEngine, SendsTheRightLogprobsOfEveryToken) {
  const std::string reply = "a phrase, a phrase, a phrase, a phrase, a phrase, a phrase";
  const auto logprobs = [&](House& house) {
    GenerateRequest request = ask("Well?");
    request.sampling.logprob_count = 2;
    std::vector<SampledToken> tokens;
    Reader reader(house.engine().generate(std::move(request)));
    while (const auto event = reader.next()) {
      tokens.insert(tokens.end(), event->tokens.begin(), event->tokens.end());
      if (event->finish) break;
    }
    return tokens;
  };
  House plain(script(reply));
  House house(script(reply), with_drafts(ngrams()));
  const auto expected = logprobs(plain);
  const auto given = logprobs(house);
  ASSERT_EQ(given.size(), expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(given[i].token, expected[i].token);
    EXPECT_EQ(given[i].logprob, expected[i].logprob);
    ASSERT_EQ(given[i].top.size(), 2U);
    EXPECT_EQ(given[i].top[1].token, expected[i].top[1].token);
  }
  EXPECT_GT(house.engine().stats().accepted_token_count, 20U);
}

TEST(SpeculativeEngine, EndsAtTheEndTokenAndTheLimitInTheMiddleOfRightDrafts) {
  const std::string reply = "abcdefghijklmnopqrstuvwxyz";
  House house(script(reply), with_drafts(std::make_unique<Oracle>(reply, 1.0), 6));
  for (int limit = 1; limit <= 26; ++limit) {
    const Answer answer = house.answer(ask("Well?", limit));
    EXPECT_EQ(answer.text(), reply.substr(0, static_cast<std::size_t>(limit)));
    EXPECT_EQ(answer.finish, FinishReason::kLength);
    EXPECT_EQ(answer.usage.output_count, limit);
  }
  for (std::size_t end = 0; end < 26; ++end) {
    GenerateRequest request = ask("Well?");
    request.end_tokens = {reply[end]};
    const Answer answer = house.answer(std::move(request));
    EXPECT_EQ(answer.text(), reply.substr(0, end + 1));
    EXPECT_EQ(answer.end_token, Token{reply[end]});
  }
  for (int minimum = 1; minimum < 12; ++minimum) {
    GenerateRequest request = ask("Well?");
    request.end_tokens = {'f'};
    request.sampling.output_count_min = minimum;
    const Answer answer = house.answer(std::move(request));
    // Below the minimum the model must say something else in its place.
    EXPECT_EQ(answer.text().substr(0, 6) == "abcdef", minimum < 6) << minimum;
  }
  EXPECT_TRUE(house.wait_for(all_blocks_free));
}

TEST(SpeculativeEngine, StopsAndCancelsBetweenDrafts) {
  const std::string reply = report();
  House house(script(reply, "step_us 200\n"), with_drafts(std::make_unique<Oracle>(reply, 0.8)));
  for (int kept = 1; kept < 60; kept += 7) {
    Reader reader(house.engine().generate(ask("Well?", 3000)));
    std::size_t seen = 0;
    bool stopped = false;
    while (const auto event = reader.next()) {
      seen += event->tokens.size();
      if (!stopped && seen >= static_cast<std::size_t>(kept)) {
        reader.stream().finish(0, kept);
        stopped = true;
      }
      if (!event->finish) continue;
      EXPECT_EQ(event->finish, FinishReason::kStop);
      EXPECT_EQ(event->usage.output_count, kept);
      break;
    }
    Reader dropped(house.engine().generate(ask("Well?", 3000)));
    ASSERT_TRUE(dropped.next().has_value());
    dropped.let_go();
  }
  EXPECT_TRUE(house.wait_for([](const EngineStats& stats) { return stats.cache_usage == 0.0; }));
}

TEST(SpeculativeEngine, GoesOnWithoutADrafterThatFails) {
  for (const bool throws : {false, true}) {
    House house(script("Hello, world"), with_drafts(std::make_unique<Broken>(throws)));
    EXPECT_EQ(house.answer(ask("Well?")).text(), "Hello, world");
    EXPECT_EQ(house.answer(ask("Well?")).text(), "Hello, world");
    EXPECT_EQ(house.engine().stats().draft_token_count, 0U);
  }
}

TEST(SpeculativeEngine, AsksForNoDraftsWhileMoreThanTheGivenNumberDecode) {
  const std::string reply = report();
  HouseOptions options = with_drafts(std::make_unique<Oracle>(reply, 1.0));
  options.limits.draft_sequences_max = 1;
  House house(script(reply), std::move(options));
  GenerateRequest two = ask("Well?", 100);
  two.choice_count = 2;
  Reader(house.engine().generate(std::move(two))).read_all(2);
  EXPECT_LE(house.engine().stats().draft_token_count, 4U * 25U);  // the last of the two, perhaps
  const auto before = house.engine().stats().draft_token_count;
  house.answer(ask("Well?", 100));
  EXPECT_GE(house.engine().stats().draft_token_count, before + 70U);
}

// --- A draft model ------------------------------------------------------------------------------

// Keeps its text in its own cache, so that every mistake in that cache is a failure.
std::unique_ptr<Drafter> draft_model(HostOps& ops, const std::string& reply, int block_count,
                                     int catch_up_max = 256) {
  auto model = make_script_model(script(reply, "block 4\n"));
  CHECK(model.has_value());
  DraftModelOptions options;
  options.worker.block_counts = {block_count};
  options.catch_up_max = catch_up_max;
  options.context_length_max = 2000;
  auto drafter = DraftModel::create(*std::move(model), ops, options);
  CHECK(drafter.has_value());
  return *std::move(drafter);
}

TEST(DraftModel, IsAlwaysRightWhenItIsTheSameModel) {
  const std::string reply = report();
  HostOps ops;
  House house(script(reply), with_drafts(draft_model(ops, reply, 1000)));
  EXPECT_EQ(house.answer(ask("Well?", 1500)).text(), reply.substr(0, 1500));
  const EngineStats stats = house.engine().stats();
  EXPECT_EQ(stats.accepted_token_count, stats.draft_token_count);
  EXPECT_LE(stats.step_count, 1500U / 5 + 5);
}

TEST(DraftModel, MaySayOtherThings) {
  const std::string reply = report();
  std::string other = reply;
  for (std::size_t i = 5; i < other.size(); i += 11) other[i] = '#';
  HostOps ops;
  House house(script(reply), with_drafts(draft_model(ops, other, 1000)));
  EXPECT_EQ(house.answer(ask("Well?", 1500)).text(), reply.substr(0, 1500));
  const EngineStats stats = house.engine().stats();
  EXPECT_GT(stats.accepted_token_count, stats.draft_token_count / 2);
  EXPECT_LT(stats.accepted_token_count, stats.draft_token_count);
}

TEST(DraftModel, CatchesUpWithLongPromptsInPieces) {
  const std::string reply = report();
  HostOps ops;
  House house(script(reply), with_drafts(draft_model(ops, reply, 1000, 50)));
  const std::string prompt = std::string(1000, 'a') + "?";
  EXPECT_EQ(house.answer(ask(prompt, 500)).text(), reply.substr(0, 500));
  const auto first = house.engine().stats().step_count;
  EXPECT_LE(first, 1001U / 50 + 500 / 5 + 10);
  EXPECT_EQ(house.engine().stats().accepted_token_count, house.engine().stats().draft_token_count);
  // The next of them finds the prompt in the draft model's cache.
  house.answer(ask(prompt, 500));
  EXPECT_LE(house.engine().stats().step_count - first, 500U / 5 + 5);
}

TEST(DraftModel, SharesASmallCacheAmongManyAndGivesUpWhereItsContextEnds) {
  const std::string reply = report();
  HostOps ops;
  // Room for two or three of them at a time.
  House house(script(reply), with_drafts(draft_model(ops, reply, 200)));
  std::vector<std::unique_ptr<Reader>> readers;
  for (int i = 0; i < 8; ++i) {
    GenerateRequest request = ask(std::string(static_cast<std::size_t>(20 * i), 'a') + "?", 300);
    request.choice_count = 1 + i % 3;
    readers.push_back(std::make_unique<Reader>(house.engine().generate(std::move(request))));
  }
  for (int i = 0; i < 8; ++i) {
    for (const auto& [choice, answer] : readers[static_cast<std::size_t>(i)]->read_all(1 + i % 3)) {
      EXPECT_EQ(answer.text(), reply.substr(0, 300)) << "request " << i << " choice " << choice;
    }
  }
  EXPECT_GT(house.engine().stats().accepted_token_count, 50U);
  EXPECT_EQ(house.engine().stats().accepted_token_count, house.engine().stats().draft_token_count);
  // Longer than its context of 2000 tokens, and than its cache.
  const std::string prompt = std::string(1900, 'b') + "?";
  EXPECT_EQ(house.answer(ask(prompt, 300)).text(), reply.substr(0, 300));
}

}  // namespace
}  // namespace kun
