// A Utf8Repair with a memory for the two places where the text depends on what came before.
#include "text/detokenizer.h"

#include <algorithm>

namespace kun {

void Detokenizer::push(Token id, std::string& text) {
  const bool kept = options_.kept_special != nullptr &&
                    std::ranges::find(*options_.kept_special, id) != options_.kept_special->end();
  std::string_view bytes = tokenizer_->bytes(id, options_.skip_special_tokens && !kept);
  const bool special = tokenizer_->is_special(id);
  if (special && after_special_ && !options_.spaces_between_special_tokens &&
      bytes.starts_with(' ')) {
    bytes.remove_prefix(1);
  }
  after_special_ = special;
  const std::size_t before = text.size();
  repair_.feed(bytes, text);
  drop_first_space(text, before);
}

std::string Detokenizer::push(std::span<const Token> ids) {
  std::string text;
  for (const Token id : ids) push(id, text);
  return text;
}

void Detokenizer::finish(std::string& text) {
  const std::size_t before = text.size();
  repair_.finish(text);
  drop_first_space(text, before);
}

void Detokenizer::drop_first_space(std::string& text, std::size_t from) {
  if (!drops_space_ || text.size() == from) return;
  drops_space_ = false;
  if (text[from] == ' ') text.erase(from, 1);
}

}  // namespace kun
