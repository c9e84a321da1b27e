// Claims about where Oniguruma and PCRE2 differ, and about searches that could run away.
#include "text/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "text/regex.h"

namespace kun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const Result<Regex> regex = Regex::compile(pattern);
  if (!regex.has_value()) return {"error: " + regex.error().message()};
  RegexScratch scratch;
  std::vector<std::string> found;
  std::size_t at = 0;
  while (const auto match = regex->find(text, at, scratch)) {
    found.emplace_back(text.substr(match->begin, match->end - match->begin));
    at = match->end;
    if (match->end == match->begin) break;
  }
  return found;
}

TEST(SplitPattern, RepeatsAnIntervalInsteadOfMakingItPossessive) {
  EXPECT_THAT(matches("\\p{N}{1,3}+", "1234567 89"), ElementsAre("1234567", "89"));
  EXPECT_THAT(matches("(?:ab){1,2}+x", "abababx"), ElementsAre("abababx"));
  EXPECT_THAT(matches("a{2}?b", "b aab"), ElementsAre("b", "aab"));
  EXPECT_THAT(matches("a{,2}b", "aaab"), ElementsAre("aab"));
}

TEST(SplitPattern, IntersectsClasses) {
  EXPECT_THAT(matches("[\\p{L}&&[^\\p{Han}]]+", "ab中cd"), ElementsAre("ab", "cd"));
  EXPECT_THAT(matches("[a-z&&[^aeiou]&&[a-m]]+", "abcdmnx"), ElementsAre("bcdm"));
  EXPECT_THAT(matches("[^\\p{L}&&[\\p{Han}]]+", "a中文b"), ElementsAre("a", "b"));
  EXPECT_THAT(matches("[a[bc]]+", "abcd[&"), ElementsAre("abc"));
}

TEST(SplitPattern, TakesWhiteSpaceFromUnicode) {
  EXPECT_TRUE(matches("\\s", "\u180E").empty());  // PCRE2's own \s has it
  EXPECT_THAT(matches("[^\\s]", "\u180E\u3000"), ElementsAre("\u180E"));
  EXPECT_THAT(matches("[\\S]", "\u180E\u0085"), ElementsAre("\u180E"));
  EXPECT_THAT(matches("\\s+", "a\u00A0\u2028\u0085b"), ElementsAre("\u00A0\u2028\u0085"));
}

TEST(SplitPattern, IgnoresCaseWhereTheGroupSaysSo) {
  EXPECT_THAT(matches("(?i:'s|'t)|x", "'S 'T X x"), ElementsAre("'S", "'T", "x"));
}

TEST(SplitPattern, RefusesByNameWhatItCannotTranslate) {
  for (const auto& [pattern, what] : std::vector<std::pair<std::string, std::string>>{
           {"\\h+", "\\h"},
           {"(?x: a)", "unknown kind of group"},
           {"(a)\\1", "\\1"},
           {"[a[^b]]", "negated class"},
           {"[a", "open class"},
           {"(a", "parenthesis open"},
           {"a)", "never opened"},
           {"*a", "repetition of nothing"},
           {"[]", "empty class"},
           {"a{x}", "{n,m}"},
           {"\\", "backslash"},
           {"\\p{NoSuchThing}", "does not compile"},
           {std::string(1U << 17U, 'a'), "too long"}}) {
    const Result<Regex> regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.has_value()) << pattern;
    EXPECT_THAT(regex.error().message(), HasSubstr(what)) << pattern;
  }
}

TEST(Regex, TakesTrailingSpaceToTheEndOfTheLine) {
  EXPECT_THAT(matches("\\s+$", "a  b  "), ElementsAre("  "));
  EXPECT_THAT(matches("\\s+$", "a \n b\n"), ElementsAre(" ", "\n"));
  EXPECT_THAT(matches("\\s+$", "  x"), ElementsAre());
  EXPECT_THAT(matches("\\s+$", " \n \n x"), ElementsAre(" \n "));
  // The same by the engine, which reads the group differently but must match alike.
  for (const char* text : {"a  b  ", "a \n b\n", "  x", " \n \n x", "\n\n", "\u3000"}) {
    EXPECT_EQ(matches("\\s+$", text), matches("(?:\\s+$)", text)) << text;
  }
}

TEST(Regex, EndsOnRunsThatWouldTakeQuadraticTime) {
  const std::string text = std::string(1U << 20U, ' ') + "1";
  const std::clock_t start = std::clock();
  EXPECT_TRUE(matches("\\s+$", text).empty());
  EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC);
}

TEST(Regex, GivesUpOnExponentialPatternsInsteadOfHanging) {
  const std::clock_t start = std::clock();
  EXPECT_TRUE(matches("(?:a|aa)+b", std::string(64, 'a')).empty());
  EXPECT_LT(std::clock() - start, 20 * CLOCKS_PER_SEC);
}

TEST(Regex, FindsVeryLongMatches) {
  const std::string text(4U << 20U, 'a');
  EXPECT_EQ(matches("\\p{L}+", text).at(0).size(), text.size());
  // Every turn of this group takes stack.
  const std::string_view turns = std::string_view(text).substr(0, 1U << 18U);
  EXPECT_EQ(matches("(?:a|b)+", turns), std::vector<std::string>{std::string(turns)});
  // More of it than there is: no match, and nothing worse.
  EXPECT_TRUE(matches("(?:a|b)+c", text + "c").empty());
}

}  // namespace
}  // namespace kun
