// Claims about stop strings, checked against a search over the whole text.
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <ctime>
#include <random>

namespace kun {
namespace {

struct Outcome {
  std::string emitted;
  std::optional<StopMatcher::Match> match;
};

// Feeds `text` in portions of `portion` bytes.
Outcome run(const StopStrings& strings, std::string_view text, std::size_t portion, bool include) {
  StopMatcher matcher(strings, include);
  Outcome outcome;
  for (std::size_t at = 0; at < text.size(); at += portion) {
    const StopMatcher::Fed fed = matcher.feed(text.substr(at, portion));
    outcome.emitted += fed.emit;
    EXPECT_EQ(fed.matched, matcher.match().has_value());
  }
  outcome.emitted += matcher.finish();
  EXPECT_EQ(matcher.emitted_bytes(), outcome.emitted.size());
  outcome.match = matcher.match();
  return outcome;
}

// The match that ends first, and of those the longest, by looking everywhere.
std::optional<StopMatcher::Match> first_match(const std::vector<std::string>& strings,
                                              std::string_view text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<StopMatcher::Match> best;
    for (std::size_t i = 0; i < strings.size(); ++i) {
      if (strings[i].empty() || !text.substr(0, end).ends_with(strings[i])) continue;
      const std::size_t begin = end - strings[i].size();
      if (!best || begin < best->begin) best = {static_cast<int>(i), begin, end};
    }
    if (best) return best;
  }
  return std::nullopt;
}

TEST(StopStrings, FindsWhatASearchOverTheWholeTextFinds) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    const auto word = [&random](std::size_t size_max) {
      std::string made;
      for (std::size_t i = random() % (size_max + 1); i > 0; --i) {
        made += static_cast<char>('a' + random() % 2);
      }
      return made;
    };
    std::vector<std::string> strings(random() % 5);
    for (std::string& string : strings) string = word(6);
    const std::string text = word(30);
    const bool include = random() % 2 == 0;
    const Outcome outcome = run(StopStrings(strings), text, 1 + random() % 4, include);
    const auto expected = first_match(strings, text);
    ASSERT_EQ(outcome.match.has_value(), expected.has_value());
    if (!expected) {
      ASSERT_EQ(outcome.emitted, text);
      continue;
    }
    ASSERT_EQ(outcome.match->index, expected->index);
    ASSERT_EQ(outcome.match->begin, expected->begin);
    ASSERT_EQ(outcome.match->end, expected->end);
    ASSERT_EQ(outcome.emitted, text.substr(0, include ? expected->end : expected->begin));
  }
}

TEST(StopStrings, HoldsBackNoMoreThanCouldStillMatch) {
  const StopStrings strings({"\n\nUser:", "###"});
  StopMatcher matcher(strings);
  EXPECT_EQ(matcher.feed("Hello\n").emit, "Hello");
  EXPECT_EQ(matcher.held_bytes(), 1U);
  EXPECT_EQ(matcher.feed("\nUs").emit, "");
  EXPECT_EQ(matcher.feed("age ##").emit, "\n\nUsage ");
  EXPECT_TRUE(matcher.feed("# more").matched);
  EXPECT_EQ(matcher.match()->index, 1);
  EXPECT_EQ(matcher.match()->begin, 13U);
  EXPECT_EQ(matcher.feed("x").emit, "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopStrings, LetsEverythingThroughWithoutStrings) {
  StopStrings none;
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(StopStrings({"", ""}).empty());
  StopMatcher matcher(none);
  EXPECT_EQ(matcher.feed("abc").emit, "abc");
}

TEST(StopStrings, CountsTheTokensThatReachTheMatch) {
  // Text after each of four tokens: "He", "Hello", "Hello#", "Hello##x".
  const std::vector<std::size_t> ends = {2, 5, 6, 8};
  EXPECT_EQ(token_count_up_to(ends, 0), 1);
  EXPECT_EQ(token_count_up_to(ends, 5), 2);
  EXPECT_EQ(token_count_up_to(ends, 7), 4);
  EXPECT_EQ(token_count_up_to(ends, 9), 4);
  EXPECT_EQ(token_count_up_to({}, 1), 0);
}

TEST(StopStrings, TakesTimeLinearInTextAndStrings) {
  std::vector<std::string> strings;
  for (int i = 0; i < 2000; ++i) strings.push_back(std::string(200, 'a') + std::to_string(i) + "z");
  const std::clock_t start = std::clock();
  const std::string text(1U << 20U, 'a');
  const Outcome outcome = run(StopStrings(std::move(strings)), text, 3, false);
  EXPECT_EQ(outcome.emitted.size(), text.size());
  EXPECT_LT(std::clock() - start, 5 * CLOCKS_PER_SEC);
}

}  // namespace
}  // namespace kun
