// Tokens to text while they are generated. Only whole characters come out: a token may end in the
// middle of one, and half a character in a JSON string is an error at the client's end. All pieces
// and the rest together are what Tokenizer::decode makes of the tokens at once.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kun {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
  // False: of neighbouring special tokens the later ones lose a leading space.
  bool spaces_between_special_tokens = true;
  // False: the tokens continue a text, so a first space is kept even where the decoder drops it.
  bool starts_text = true;
  // Special tokens that are text all the same, for parsers that wait for them. Must outlive it.
  const std::vector<Token>* kept_special = nullptr;
};

// One per choice of a request; not thread-safe. `tokenizer` must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {})
      : tokenizer_(&tokenizer),
        options_(options),
        drops_space_(options.starts_text && tokenizer.strips_first_space()) {}

  // Appends the text that `id` completes: nothing, when it ends in the middle of a character.
  void push(Token id, std::string& text);
  std::string push(std::span<const Token> ids);

  // Appends U+FFFD when a character was never completed.
  void finish(std::string& text);

 private:
  void drop_first_space(std::string& text, std::size_t from);

  const Tokenizer* tokenizer_;
  DetokenizerOptions options_;
  Utf8Repair repair_;
  bool drops_space_;  // until the first character
  bool after_special_ = false;
};

}  // namespace kun
