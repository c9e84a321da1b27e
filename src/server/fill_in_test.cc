#include "server/fill_in.h"

#include <gtest/gtest.h>

#include <map>

namespace kun {
namespace {

// Bytes are ids, and some marks have ids of their own.
class MarkTokenizer : public Tokenizer {
 public:
  explicit MarkTokenizer(std::map<std::string, Token, std::less<>> marks)
      : marks_(std::move(marks)) {}

  std::vector<Token> encode(std::string_view text, bool add_special_tokens) const override {
    std::vector<Token> tokens;
    if (add_special_tokens) tokens.push_back(1000);
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
    return tokens;
  }
  std::string_view bytes(Token, bool) const override { return ""; }
  std::string decode(std::span<const Token>, bool) const override { return ""; }
  std::string_view piece(Token) const override { return ""; }
  std::optional<Token> find(std::string_view piece) const override {
    const auto found = marks_.find(piece);
    return found == marks_.end() ? std::nullopt : std::optional(found->second);
  }
  int vocabulary_size() const override { return 2000; }
  bool is_special(Token) const override { return false; }
  std::optional<Token> bos() const override { return 1000; }
  std::optional<Token> eos() const override { return std::nullopt; }
  bool strips_first_space() const override { return false; }

 private:
  std::map<std::string, Token, std::less<>> marks_;
};

TEST(FillIn, PutsMarksAroundPrefixAndSuffix) {
  const MarkTokenizer deepseek(
      {{"<｜fim▁begin｜>", 301}, {"<｜fim▁hole｜>", 302}, {"<｜fim▁end｜>", 303}});
  EXPECT_EQ(fill_in_tokens(deepseek, "ab", "c", true),
            (std::vector<Token>{1000, 301, 'a', 'b', 302, 'c', 303}));
  const MarkTokenizer qwen(
      {{"<|fim_prefix|>", 401}, {"<|fim_suffix|>", 402}, {"<|fim_middle|>", 403}});
  EXPECT_EQ(fill_in_tokens(qwen, "", "c", false), (std::vector<Token>{401, 402, 'c', 403}));
}

TEST(FillIn, NeedsAllThreeMarks) {
  EXPECT_FALSE(fill_in_tokens(MarkTokenizer({}), "a", "b", true));
  const MarkTokenizer half({{"<｜fim▁begin｜>", 301}, {"<｜fim▁hole｜>", 302}});
  EXPECT_FALSE(fill_in_tokens(half, "a", "b", true));
}

}  // namespace
}  // namespace kun
