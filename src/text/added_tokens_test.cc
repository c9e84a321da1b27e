// Claims about finding added tokens in text.
#include "text/added_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kun {
namespace {

using ::testing::ElementsAre;

// Segments as text; added tokens as "id:text".
std::vector<std::string> split(std::vector<AddedTokenSpec> tokens, std::string_view text) {
  std::vector<AddedTokenMatcher::Entry> entries;
  for (const AddedTokenSpec& token : tokens) entries.push_back({token.content, token});
  const AddedTokenMatcher matcher(entries);
  std::vector<AddedTokenMatcher::Segment> segments;
  matcher.split(text, segments);
  std::vector<std::string> shown;
  std::size_t covered = 0;
  for (const auto& segment : segments) {
    EXPECT_EQ(segment.begin, covered);
    covered = segment.end;
    const std::string part(text.substr(segment.begin, segment.end - segment.begin));
    shown.push_back(segment.id < 0 ? part : std::to_string(segment.id) + ":" + part);
  }
  EXPECT_EQ(covered, text.size());
  return shown;
}

TEST(AddedTokens, TakesTheLongestThatMatches) {
  const std::vector<AddedTokenSpec> tokens = {
      {.id = 1, .content = "<a"}, {.id = 2, .content = "<a>>"}, {.id = 3, .content = "<a><b>"}};
  EXPECT_THAT(split(tokens, "x<a><b>y<a>>z<a>"),
              ElementsAre("x", "3:<a><b>", "y", "2:<a>>", "z", "1:<a", ">"));
  EXPECT_THAT(split(tokens, "<"), ElementsAre("<"));
  EXPECT_THAT(split(tokens, ""), ElementsAre());
}

TEST(AddedTokens, FindsTokensWithDifferentFirstBytes) {
  EXPECT_THAT(split({{.id = 7, .content = "ö"}, {.id = 8, .content = "|x|"}}, "öä|x|ö"),
              ElementsAre("7:ö", "ä", "8:|x|", "7:ö"));
}

TEST(AddedTokens, TakesWhiteSpaceAlongWhereAsked) {
  EXPECT_THAT(split({{.id = 1, .content = "<m>", .lstrip = true}}, "a \u3000<m> b"),
              ElementsAre("a", "1: \u3000<m>", " b"));
  EXPECT_THAT(split({{.id = 1, .content = "<m>", .rstrip = true}}, "a <m> \n<m> b"),
              ElementsAre("a ", "1:<m> \n", "1:<m> ", "b"));
  EXPECT_THAT(split({{.id = 1, .content = "<m>", .lstrip = true, .rstrip = true}}, " <m> <m>"),
              ElementsAre("1: <m> ", "1:<m>"));
}

TEST(AddedTokens, LeavesWordsWholeWhereAsked) {
  const std::vector<AddedTokenSpec> tokens = {{.id = 1, .content = "cat", .single_word = true}};
  EXPECT_THAT(split(tokens, "cat concat cats (cat) écat"),
              ElementsAre("1:cat", " concat cats (", "1:cat", ") écat"));
}

TEST(AddedTokens, CountsTheFirstOfEqualContents) {
  EXPECT_THAT(
      split({{.id = 4, .content = "x"}, {.id = 5, .content = "x"}, {.id = 6, .content = ""}}, "x"),
      ElementsAre("4:x"));
}

}  // namespace
}  // namespace kun
