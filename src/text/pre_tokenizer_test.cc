// Claims about cutting: the behaviours are those that Hugging Face's documentation shows on
// "the-final--countdown" with "-" as the pattern.
#include "text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kun {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> cut(const std::vector<SplitSpec>& steps, std::string_view text,
                             bool starts_input = true) {
  const Result<PreTokenizer> cutter = PreTokenizer::create(steps);
  EXPECT_TRUE(cutter.has_value());
  PreTokenizerScratch scratch;
  cutter->cut(text, starts_input, scratch);
  return {scratch.pieces.begin(), scratch.pieces.end()};
}

std::vector<std::string> cut_countdown(SplitBehavior behavior, SplitKind kind) {
  return cut({{.kind = kind, .pattern = "-", .behavior = behavior}}, "the-final--countdown");
}

TEST(PreTokenizer, SplitsInFiveWays) {
  for (const SplitKind kind : {SplitKind::kText, SplitKind::kRegex}) {
    EXPECT_THAT(cut_countdown(SplitBehavior::kRemoved, kind),
                ElementsAre("the", "final", "countdown"));
    EXPECT_THAT(cut_countdown(SplitBehavior::kIsolated, kind),
                ElementsAre("the", "-", "final", "-", "-", "countdown"));
    EXPECT_THAT(cut_countdown(SplitBehavior::kMergedWithPrevious, kind),
                ElementsAre("the-", "final-", "-", "countdown"));
    EXPECT_THAT(cut_countdown(SplitBehavior::kMergedWithNext, kind),
                ElementsAre("the", "-final", "-", "-countdown"));
    EXPECT_THAT(cut_countdown(SplitBehavior::kContiguous, kind),
                ElementsAre("the", "-", "final", "--", "countdown"));
  }
}

TEST(PreTokenizer, InvertsWhatMatches) {
  EXPECT_THAT(
      cut({{.pattern = "\\w+|[^\\w\\s]+", .behavior = SplitBehavior::kRemoved, .invert = true}},
          " Hey friend!  (ok) "),
      ElementsAre("Hey", "friend", "!", "(", "ok", ")"));
}

TEST(PreTokenizer, AppliesEveryStepToThePiecesOfTheLast) {
  EXPECT_THAT(cut({{.pattern = "\\p{N}{1,3}"}, {.pattern = "b+"}}, "abb12345b"),
              ElementsAre("a", "bb", "123", "45", "b"));
}

TEST(PreTokenizer, SplitsAtEmptyMatches) {
  EXPECT_THAT(cut({{.pattern = "(?=b)"}}, "aébcb"), ElementsAre("aé", "bc", "b"));
  EXPECT_THAT(cut({{.pattern = "x*"}}, "éxy"), ElementsAre("é", "x", "y"));
  EXPECT_THAT(cut({{.pattern = "x*"}}, ""), ElementsAre());
}

TEST(PreTokenizer, PutsASpaceBeforePiecesThatHaveNone) {
  EXPECT_THAT(cut({{.pattern = "-"}, {.kind = SplitKind::kPrefixSpace}}, "a- b"),
              ElementsAre(" a", " -", " b"));
}

TEST(PreTokenizer, ReplacesSpacesAndPrependsAsTheSchemeSays) {
  const auto metaspace = [](PrependScheme scheme) {
    return std::vector<SplitSpec>{
        {.kind = SplitKind::kMetaspace, .pattern = "▁", .prepend = scheme},
        {.kind = SplitKind::kText, .pattern = "▁", .behavior = SplitBehavior::kMergedWithNext}};
  };
  EXPECT_THAT(cut(metaspace(PrependScheme::kAlways), "Hey  you"), ElementsAre("▁Hey", "▁", "▁you"));
  EXPECT_THAT(cut(metaspace(PrependScheme::kAlways), " Hey"), ElementsAre("▁Hey"));
  EXPECT_THAT(cut(metaspace(PrependScheme::kNever), "Hey you"), ElementsAre("Hey", "▁you"));
  EXPECT_THAT(cut(metaspace(PrependScheme::kFirst), "Hey"), ElementsAre("▁Hey"));
  EXPECT_THAT(cut(metaspace(PrependScheme::kFirst), "Hey", false), ElementsAre("Hey"));
}

TEST(PreTokenizer, RefusesEmptyPatternsAndTooManySteps) {
  EXPECT_FALSE(PreTokenizer::create({{.pattern = ""}}).has_value());
  EXPECT_FALSE(PreTokenizer::create(std::vector<SplitSpec>(65, {.pattern = "a"})).has_value());
}

}  // namespace
}  // namespace kun
