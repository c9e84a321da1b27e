#include "server/fill_in.h"

#include <array>

namespace kun {
namespace {

// All three families write: mark, prefix, mark, suffix, mark; then the model writes the middle.
struct FillInMarks {
  std::string_view prefix;
  std::string_view suffix;
  std::string_view middle;
};

constexpr std::array<FillInMarks, 3> kFamilies = {{
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},  // DeepSeek
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},  // Qwen
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},        // StarCoder
}};

}  // namespace

std::optional<std::vector<Token>> fill_in_tokens(const Tokenizer& tokenizer,
                                                 std::string_view prefix, std::string_view suffix,
                                                 bool add_special_tokens) {
  for (const FillInMarks& marks : kFamilies) {
    const auto begin = tokenizer.find(marks.prefix);
    const auto hole = tokenizer.find(marks.suffix);
    const auto end = tokenizer.find(marks.middle);
    if (!begin || !hole || !end) continue;
    std::vector<Token> tokens;
    // What the tokenizer puts before every text (BOS) goes before the first mark.
    if (add_special_tokens) tokens = tokenizer.encode("", true);
    const auto add = [&](Token mark, std::string_view text) {
      tokens.push_back(mark);
      const std::vector<Token> ids = tokenizer.encode(text, false);
      tokens.insert(tokens.end(), ids.begin(), ids.end());
    };
    add(*begin, prefix);
    add(*hole, suffix);
    tokens.push_back(*end);
    return tokens;
  }
  return std::nullopt;
}

}  // namespace kun
