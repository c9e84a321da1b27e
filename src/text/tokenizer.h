// Text to token ids and back. A Tokenizer is const once built and may be used from any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/token.h"

namespace kun {

struct TokenizerSpec;  // text/tokenizer_spec.h: the plain data a tokenizer is built from

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of `text`. With `add_special_tokens` the model's own BOS (and whatever else its
  // post-processor adds) is put around it; special tokens spelled out in the text are recognized
  // either way. Invalid UTF-8 is read as U+FFFD.
  virtual std::vector<Token> encode(std::string_view text, bool add_special_tokens) const = 0;

  // The bytes that `id` stands for in running text: possibly half a character; empty for ids
  // outside the vocabulary and, with `skip_special_tokens`, for special ones.
  virtual std::string_view bytes(Token id, bool skip_special_tokens) const = 0;

  // All of `ids` at once, invalid UTF-8 replaced by U+FFFD, and the decoder's own trimming applied
  // (SentencePiece drops the first space).
  virtual std::string decode(std::span<const Token> ids, bool skip_special_tokens) const = 0;

  // The vocabulary's spelling of `id` ("Ġhello", "▁hello"), as /tokenize shows it.
  virtual std::string_view piece(Token id) const = 0;
  virtual std::optional<Token> find(std::string_view piece) const = 0;

  virtual int vocabulary_size() const = 0;  // highest id + 1
  virtual bool is_special(Token id) const = 0;
  virtual std::optional<Token> bos() const = 0;
  virtual std::optional<Token> eos() const = 0;
  virtual bool strips_first_space() const = 0;
};

Result<std::unique_ptr<const Tokenizer>> make_tokenizer(TokenizerSpec spec);

}  // namespace kun
