// Claims about UTF-8 repair, checked against the examples of the Unicode standard.
#include "text/utf8.h"

#include <gtest/gtest.h>

#include <random>

#include "text/byte_alphabet.h"

namespace kun {
namespace {

const std::string kBad(kReplacementCharacter);

TEST(Utf8, ReplacesEveryMaximalSubpartByOneCharacter) {
  // Tables 3-8 to 3-11 of the Unicode standard, version 15.
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            kBad + kBad + kBad + kBad + kBad + kBad + kBad + kBad + "A");
  EXPECT_EQ(to_valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            kBad + kBad + kBad + kBad + kBad + "A" + kBad + kBad + "B");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), kBad + kBad + kBad + kBad + "A");
}

TEST(Utf8, KnowsValidFromInvalid) {
  EXPECT_TRUE(is_valid_utf8(""));
  EXPECT_TRUE(is_valid_utf8("plain text of more than eight bytes, é 中 😀 \xF4\x8F\xBF\xBF"));
  for (const char* text : {"\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
                           "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3", "\xF0\x9F\x98"}) {
    EXPECT_FALSE(is_valid_utf8(text));
  }
}

TEST(Utf8, GivesTheSameTextHoweverTheBytesArrive) {
  std::mt19937 random(1);
  const std::string alphabet = "a\x80\xBF\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80\xED\xF4\xFF";
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    for (std::size_t i = random() % 24; i > 0; --i) bytes += alphabet[random() % alphabet.size()];
    Utf8Repair repair;
    std::string text;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = 1 + random() % 5;
      repair.feed(std::string_view(bytes).substr(at, count), text);
      ASSERT_TRUE(is_valid_utf8(text));
      ASSERT_LE(repair.pending_count(), 3U);
      at += count;
    }
    repair.finish(text);
    ASSERT_EQ(text, to_valid_utf8(bytes));
  }
}

TEST(Utf8, WritesWhatItReads) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_TRUE(is_valid_utf8(text));
    ASSERT_EQ(utf8_length(text[0]), text.size());
    ASSERT_EQ(first_code_point(text), c);
    ASSERT_EQ(previous_character("x" + text, text.size() + 1), 1U);
  }
}

TEST(ByteAlphabet, SpellsEveryByteAsOnePrintableCharacterAndBack) {
  EXPECT_EQ(spell_bytes(" \n!~\xAD\xFF"), "ĠĊ!~Ńÿ");
  for (int b = 0; b < 256; ++b) {
    const std::string byte(1, static_cast<char>(b));
    ASSERT_EQ(bytes_of_spelling(spell_bytes(byte)), byte);
  }
  EXPECT_EQ(bytes_of_spelling("<｜User｜>"), std::nullopt);
  EXPECT_EQ(bytes_of_spelling(" "), std::nullopt);
  EXPECT_EQ(bytes_of_spelling("a\xC4"), std::nullopt);
}

}  // namespace
}  // namespace kun
