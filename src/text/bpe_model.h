// Turns one piece of text into tokens by byte-pair encoding: over bytes, over characters, or by
// SentencePiece's scores. All three fill the same merge table once and then differ only in the
// symbols they start from and in what they do with characters nobody knows.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/merge_table.h"
#include "text/tokenizer_spec.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace kun {

// What encoding writes to. One per thread at a time, and of one model only: the cache remembers.
struct BpeScratch {
  std::vector<Token> symbols;
  MergeScratch merge;
  WordCache cache;
};

// Const once built; any thread may use it with a scratch of its own.
class BpeModel {
 public:
  // `vocabulary` must outlive the model.
  static Result<BpeModel> create(const TokenizerSpec& spec, const Vocabulary& vocabulary);

  // Appends the tokens of `piece`. Requires: valid UTF-8.
  void encode(std::string_view piece, BpeScratch& scratch, std::vector<Token>& tokens) const;

 private:
  BpeModel(const TokenizerSpec& spec, const Vocabulary& vocabulary, std::size_t merge_count);

  Status add_merges(const std::vector<MergeSpec>& merges);
  void add_scored_merges(const std::vector<float>& scores);
  void find_word_ends(const std::vector<MergeSpec>& merges);
  Token symbol_of(std::string_view text) const;
  Token virtual_symbol(std::string_view character);

  void encode_word(std::string_view word, BpeScratch& scratch, std::vector<Token>& tokens) const;
  Token find_whole(std::string_view word) const;
  void encode_bytes(std::string_view word, BpeScratch& scratch) const;
  void encode_characters(std::string_view word, BpeScratch& scratch) const;
  void push_unknown(std::string_view character, std::vector<Token>& symbols) const;
  std::size_t word_end(std::string_view piece, std::size_t from) const;

  const Vocabulary* vocabulary_;
  TokenizerModel kind_;
  bool ignore_merges_;
  bool byte_fallback_;
  bool fuse_unknown_;
  Token unknown_;  // -1: unknown characters vanish
  MergeTable merges_;
  std::array<Token, 256> byte_tokens_{};  // of bytes; for characters, of ASCII and of "<0x0A>"
  std::array<Token, 128> ascii_tokens_{};
  // kScoreBpe: characters that pieces are made of without being pieces themselves. Their symbols
  // are numbered behind the vocabulary.
  std::map<std::string, Token, std::less<>> virtual_symbols_;
  std::vector<std::string> virtual_characters_;
  bool splits_at_metaspace_ = false;  // no piece has "▁" behind anything but "▁"
};

}  // namespace kun
