// Claims about normalization.
#include "text/normalizer.h"

#include <gtest/gtest.h>

namespace kun {
namespace {

std::string normalized(const std::vector<NormalizerSpec>& steps, std::string_view text) {
  const Result<Normalizer> normalizer = Normalizer::create(steps);
  EXPECT_TRUE(normalizer.has_value());
  std::string storage;
  RegexScratch scratch;
  return std::string(normalizer->normalize(text, storage, scratch));
}

TEST(Normalizer, ComposesAndDecomposes) {
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfc}}, "e\u0301 \u1100\u1161"), "\u00E9 \uAC00");
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfd}}, "\u00E9"), "e\u0301");
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfkc}}, "ﬁ①Ａ"), "fi1A");
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfkd}}, "ﬁé"), "fie\u0301");
  // Order of marks, an exclusion from composition, and a character that is never in NFC.
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfc}}, "a\u0301\u0323"), "\u1EA1\u0301");
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfc}}, "\u0958"), "\u0915\u093C");
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfc}}, "\u212B"), "\u00C5");
}

TEST(Normalizer, KeepsTextThatIsInNfcWhereItIs) {
  const std::string text = "Grüße, 世界! Привет, 가나다 カナ";
  const Result<Normalizer> normalizer = Normalizer::create({{.kind = NormalizerKind::kNfc}});
  std::string storage;
  RegexScratch scratch;
  EXPECT_EQ(normalizer->normalize(text, storage, scratch).data(), text.data());
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kNfc}}, "か\u3099"), "が");
}

TEST(Normalizer, ReplacesPrependsStripsAndLowers) {
  const std::vector<NormalizerSpec> llama = {
      {.kind = NormalizerKind::kPrepend, .content = "▁"},
      {.kind = NormalizerKind::kReplaceText, .pattern = " ", .content = "▁"}};
  EXPECT_EQ(normalized(llama, "a b "), "▁a▁b▁");
  EXPECT_EQ(normalized(llama, ""), "");
  EXPECT_EQ(
      normalized({{.kind = NormalizerKind::kReplaceRegex, .pattern = " {2,}", .content = "_"}},
                 "a  b c   "),
      "a_b c_");
  EXPECT_EQ(
      normalized({{.kind = NormalizerKind::kReplaceRegex, .pattern = "x*", .content = "-"}}, "aé"),
      "-a-é-");
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kStrip, .strip_right = false}}, " \u3000a "),
            "a ");
  EXPECT_EQ(normalized({{.kind = NormalizerKind::kLowercase}}, "ÀΣİ"), "àσi\u0307");
}

TEST(Normalizer, RefusesAnEmptyPattern) {
  EXPECT_FALSE(Normalizer::create({{.kind = NormalizerKind::kReplaceText}}).has_value());
  EXPECT_FALSE(
      Normalizer::create({{.kind = NormalizerKind::kReplaceRegex, .pattern = "("}}).has_value());
}

}  // namespace
}  // namespace kun
