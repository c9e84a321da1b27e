// Claims about the tokenizer on vocabularies small enough to follow by hand; the real ones are
// tested in runtime/, which can read them.
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace kun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All 256 bytes, then "th", "the", " the", and "<eot>" as an added token.
TokenizerSpec byte_spec() {
  TokenizerSpec spec;
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    spec.pieces.push_back({spell_bytes({&byte, 1}), PieceKind::kNormal});
  }
  for (const char* piece : {"th", "the", "Ġthe"}) {
    spec.pieces.push_back({piece, PieceKind::kNormal});
  }
  spec.merges = {{"t", "h"}, {"th", "e"}, {"Ġ", "the"}};
  spec.added_tokens = {{.id = 259, .content = "<eot>", .special = true}};
  spec.decoder.byte_level = true;
  spec.bos = spec.eos = 259;
  spec.prefix = {259};
  return spec;
}

// <unk> <s> </s>, bytes of "é", then characters and words with falling scores.
TokenizerSpec score_spec() {
  TokenizerSpec spec;
  spec.model = TokenizerModel::kScoreBpe;
  const auto add = [&spec](std::string text, PieceKind kind, float score) {
    spec.pieces.push_back({std::move(text), kind});
    spec.scores.push_back(score);
  };
  add("<unk>", PieceKind::kUnknown, 0);
  add("<s>", PieceKind::kControl, 0);
  add("<0xC3>", PieceKind::kByte, 0);
  add("<0xA9>", PieceKind::kByte, 0);
  add("▁", PieceKind::kNormal, -9);
  add("a", PieceKind::kNormal, -9);
  add("b", PieceKind::kNormal, -9);
  add("ab", PieceKind::kNormal, -2);
  add("▁a", PieceKind::kNormal, -1);
  add("bq", PieceKind::kNormal, -5);  // "q" is no piece of its own
  spec.byte_fallback = true;
  spec.fuse_unknown = true;
  spec.unknown = 0;
  spec.normalizers = {{.kind = NormalizerKind::kPrepend, .content = "▁"},
                      {.kind = NormalizerKind::kReplaceText, .pattern = " ", .content = "▁"}};
  spec.decoder = {.space = "▁", .byte_fallback = true, .strip_one_left = true};
  return spec;
}

std::unique_ptr<const Tokenizer> make(TokenizerSpec spec) {
  auto tokenizer = make_tokenizer(std::move(spec));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message();
  return *std::move(tokenizer);
}

TEST(Tokenizer, MergesByRankAndFindsAddedTokens) {
  const auto tokenizer = make(byte_spec());
  EXPECT_THAT(tokenizer->encode("the the<eot>t", false), ElementsAre(257, 258, 259, 't'));
  EXPECT_THAT(tokenizer->encode("", true), ElementsAre(259));
  EXPECT_THAT(tokenizer->encode("th", true), ElementsAre(259, 256));
  EXPECT_EQ(tokenizer->decode(std::vector<Token>{258, 259, 257}, true), " thethe");
  EXPECT_EQ(tokenizer->decode(std::vector<Token>{258, 259, 257}, false), " the<eot>the");
  EXPECT_EQ(tokenizer->piece(258), "Ġthe");
  EXPECT_EQ(tokenizer->bytes(258, false), " the");
  EXPECT_EQ(tokenizer->find("Ġthe"), 258);
  EXPECT_EQ(tokenizer->find("no such piece"), std::nullopt);
  EXPECT_EQ(tokenizer->vocabulary_size(), 260);
}

TEST(Tokenizer, TakesIdsOutsideTheVocabularyForNothing) {
  const auto tokenizer = make(byte_spec());
  for (const Token id : {-1, 260, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->bytes(id, false), "");
    EXPECT_EQ(tokenizer->piece(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
  }
}

TEST(Tokenizer, ReadsInvalidUtf8AsReplacementCharacters) {
  const auto tokenizer = make(byte_spec());
  const std::vector<Token> ids = tokenizer->encode("a\xFF", false);
  EXPECT_THAT(ids, ElementsAre('a', 0xEF, 0xBF, 0xBD));
}

TEST(Tokenizer, TakesWholePiecesWhereMergesAreIgnored) {
  TokenizerSpec spec = byte_spec();
  spec.pieces.push_back({"at", PieceKind::kAbsent});  // the id of "<eot>"
  spec.pieces.push_back({"at", PieceKind::kNormal});
  EXPECT_THAT(make(spec)->encode("at", false), ElementsAre('a', 't'));
  spec.ignore_merges = true;
  EXPECT_THAT(make(spec)->encode("at", false), ElementsAre(260));
  EXPECT_THAT(make(spec)->encode("ath", false), ElementsAre('a', 256));
}

TEST(Tokenizer, MatchesNormalizedTokensInNormalizedText) {
  TokenizerSpec spec = byte_spec();
  spec.normalizers = {{.kind = NormalizerKind::kLowercase}};
  spec.added_tokens.push_back({.id = 260, .content = "<Tool>", .normalized = true});
  EXPECT_THAT(make(spec)->encode("<TOOL><EOT><eot>", false),
              ElementsAre(260, '<', 'e', 'o', 't', '>', 259));
}

TEST(Tokenizer, MergesTheBestScoreFirst) {
  const auto tokenizer = make(score_spec());
  // "▁a" scores better than "ab".
  EXPECT_THAT(tokenizer->encode("ab", false), ElementsAre(8, 6));
  EXPECT_THAT(tokenizer->encode("bab", false), ElementsAre(4, 6, 7));
  EXPECT_EQ(tokenizer->decode(std::vector<Token>{8, 6, 4, 7}, false), "ab ab");
}

TEST(Tokenizer, FallsBackToBytesAndThenToUnknown) {
  const auto tokenizer = make(score_spec());
  EXPECT_THAT(tokenizer->encode("bé", false), ElementsAre(4, 6, 2, 3));
  EXPECT_THAT(tokenizer->encode("b中中é", false), ElementsAre(4, 6, 0, 2, 3));
  EXPECT_THAT(tokenizer->encode("bq", false), ElementsAre(4, 9));
  EXPECT_THAT(tokenizer->encode("q", false), ElementsAre(4, 0));
  EXPECT_EQ(tokenizer->decode(std::vector<Token>{4, 2, 3, 2}, false), "é\xEF\xBF\xBD");
}

TEST(Tokenizer, RefusesPartsThatDoNotFitTogether) {
  const auto message_of = [](const TokenizerSpec& spec) {
    const auto tokenizer = make_tokenizer(spec);
    return tokenizer.has_value() ? "" : tokenizer.error().message();
  };
  TokenizerSpec spec = byte_spec();
  spec.merges.push_back({"t", "zz"});
  EXPECT_THAT(message_of(spec), HasSubstr("merge 3"));
  spec = byte_spec();
  spec.eos = 260;
  EXPECT_THAT(message_of(spec), HasSubstr("260"));
  spec = byte_spec();
  spec.added_tokens[0].id = -5;
  EXPECT_THAT(message_of(spec), HasSubstr("below zero"));
  spec.added_tokens[0].id = INT32_MAX;
  EXPECT_THAT(message_of(spec), HasSubstr("more than"));
  spec = score_spec();
  spec.scores.pop_back();
  EXPECT_THAT(message_of(spec), HasSubstr("scores"));
  spec = score_spec();
  spec.unknown = 1000;
  EXPECT_THAT(message_of(spec), HasSubstr("unknown token"));
  EXPECT_THAT(message_of(TokenizerSpec{}), HasSubstr("no pieces"));
}

TEST(Tokenizer, EncodesTheSameFromManyThreads) {
  const auto tokenizer = make(byte_spec());
  const std::string text = "the the other <eot> thé the";
  const std::vector<Token> expected = tokenizer->encode(text, true);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) wrong += tokenizer->encode(text, true) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Detokenizer, EmitsWholeCharactersOnlyAndAllInAllWhatDecodeMakes) {
  std::mt19937 random(3);
  const std::vector<std::unique_ptr<const Tokenizer>> tokenizers = [] {
    std::vector<std::unique_ptr<const Tokenizer>> made;
    made.push_back(make(byte_spec()));
    made.push_back(make(score_spec()));
    return made;
  }();
  for (int round = 0; round < 4000; ++round) {
    const Tokenizer& tokenizer = *tokenizers[static_cast<std::size_t>(round % 2)];
    const bool skip = random() % 2 == 0;
    std::vector<Token> ids(random() % 12);
    for (Token& id : ids) {
      id = static_cast<Token>(random() % static_cast<unsigned>(tokenizer.vocabulary_size() + 2));
      if (random() % 3 == 0) id = static_cast<Token>(0xE0 + random() % 0x20);
    }
    Detokenizer detokenizer(tokenizer, {.skip_special_tokens = skip});
    std::string text;
    for (const Token id : ids) {
      detokenizer.push(id, text);
      ASSERT_TRUE(is_valid_utf8(text));
    }
    detokenizer.finish(text);
    ASSERT_EQ(text, tokenizer.decode(ids, skip));
  }
}

TEST(Detokenizer, HoldsBackHalfACharacter) {
  const auto tokenizer = make(byte_spec());
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.push(std::vector<Token>{'a', 0xF0, 0x9F, 0x98}), "a");
  EXPECT_EQ(detokenizer.push(std::vector<Token>{0x80}), "😀");
  EXPECT_EQ(detokenizer.push(std::vector<Token>{0xE4, 0xB8}), "");
  std::string rest;
  detokenizer.finish(rest);
  EXPECT_EQ(rest, kReplacementCharacter);
}

TEST(Detokenizer, KeepsTheFirstSpaceOfAContinuedText) {
  const auto tokenizer = make(score_spec());
  EXPECT_EQ(Detokenizer(*tokenizer).push(std::vector<Token>{8}), "a");
  EXPECT_EQ(Detokenizer(*tokenizer, {.starts_text = false}).push(std::vector<Token>{8}), " a");
}

TEST(Detokenizer, DropsSpacesBetweenSpecialTokensWhereAsked) {
  TokenizerSpec spec = byte_spec();
  spec.added_tokens.push_back({.id = 260, .content = " <x>", .special = true});
  const auto tokenizer = make(spec);
  const std::vector<Token> ids = {'a', 260, 260, 'b', 260};
  DetokenizerOptions options{.skip_special_tokens = false};
  EXPECT_EQ(Detokenizer(*tokenizer, options).push(ids), "a <x> <x>b <x>");
  options.spaces_between_special_tokens = false;
  EXPECT_EQ(Detokenizer(*tokenizer, options).push(ids), "a <x><x>b <x>");
}

}  // namespace
}  // namespace kun
