// Building resolves every merge to ids, so that encoding never compares strings. Words are looked
// up in the cache first; what is longer than the cache takes is merged with a heap.
#include "text/bpe_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace kun {
namespace {

constexpr std::string_view kMetaspace = "▁";
constexpr std::size_t kWordBytesMax = 64U << 20U;   // longer words are cut: positions have 32 bits
constexpr std::size_t kPieceBytesMax = 64U << 10U;  // longer words are no pieces
constexpr std::size_t kScoredPieceBytesMax = 1024;  // a piece of n bytes has up to n - 1 merges

// Calls visit(left, right) for every way to cut `piece` in two.
template <class Visit>
void for_each_cut(std::string_view piece, const Visit& visit) {
  if (piece.size() > kScoredPieceBytesMax) return;
  for (std::size_t at = 0; at < piece.size();) {
    at += std::min(utf8_length(piece[at]), piece.size() - at);
    if (at < piece.size()) visit(piece.substr(0, at), piece.substr(at));
  }
}

bool is_one_character(std::string_view text) {
  return !text.empty() && utf8_length(text[0]) >= text.size();
}

}  // namespace

BpeModel::BpeModel(const TokenizerSpec& spec, const Vocabulary& vocabulary, std::size_t merge_count)
    : vocabulary_(&vocabulary),
      kind_(spec.model),
      ignore_merges_(spec.ignore_merges),
      byte_fallback_(spec.byte_fallback),
      fuse_unknown_(spec.fuse_unknown),
      unknown_(spec.unknown.value_or(-1)),
      merges_(merge_count) {
  for (std::size_t b = 0; b < 256; ++b) {
    const auto byte = static_cast<unsigned char>(b);
    const char text = static_cast<char>(byte);
    byte_tokens_[b] = kind_ == TokenizerModel::kByteBpe
                          ? vocabulary.find_in_model(spell_bytes({&text, 1}))
                          : vocabulary.find_byte(byte);
    if (b < 128) ascii_tokens_[b] = vocabulary.find_in_model({&text, 1});
  }
}

Result<BpeModel> BpeModel::create(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  if (spec.unknown.has_value() && !vocabulary.contains(*spec.unknown)) {
    return invalid_argument(
        fmt::format("the unknown token {} is outside the vocabulary", *spec.unknown));
  }
  if (spec.model != TokenizerModel::kScoreBpe) {
    BpeModel model(spec, vocabulary, spec.merges.size());
    RETURN_IF_ERROR(model.add_merges(spec.merges));
    if (spec.model == TokenizerModel::kCharBpe) model.find_word_ends(spec.merges);
    return model;
  }
  if (spec.scores.size() != spec.pieces.size()) {
    return invalid_argument(fmt::format("the tokenizer has {} pieces and {} scores",
                                        spec.pieces.size(), spec.scores.size()));
  }
  std::size_t cuts = 0;
  for (Token id = 0; id < vocabulary.size(); ++id) {
    for_each_cut(vocabulary.piece(id), [&cuts](auto, auto) { ++cuts; });
  }
  BpeModel model(spec, vocabulary, cuts);
  model.add_scored_merges(spec.scores);
  model.find_word_ends({});
  return model;
}

Status BpeModel::add_merges(const std::vector<MergeSpec>& merges) {
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const MergeSpec& merge = merges[rank];
    const Token left = vocabulary_->find_in_model(merge.left);
    const Token right = vocabulary_->find_in_model(merge.right);
    joined.assign(merge.left).append(merge.right);
    const Token result = vocabulary_->find_in_model(joined);
    if (left < 0 || right < 0 || result < 0) {
      return invalid_argument(fmt::format(
          "merge {} of the tokenizer names a piece that is not in its vocabulary", rank));
    }
    merges_.add(left, right, {static_cast<std::uint32_t>(rank), result});
  }
  return {};
}

Token BpeModel::symbol_of(std::string_view text) const {
  const Token id = vocabulary_->find_in_model(text);
  if (id >= 0 && vocabulary_->kind(id) == PieceKind::kNormal) return id;
  const auto found = virtual_symbols_.find(text);
  return found == virtual_symbols_.end() ? -1 : found->second;
}

Token BpeModel::virtual_symbol(std::string_view character) {
  const Token id = vocabulary_->size() + static_cast<Token>(virtual_characters_.size());
  const auto [entry, inserted] = virtual_symbols_.emplace(std::string(character), id);
  if (inserted) virtual_characters_.emplace_back(character);
  return entry->second;
}

// Every way to make a piece of two symbols is a merge, ranked by the piece's score, best first.
void BpeModel::add_scored_merges(const std::vector<float>& scores) {
  const auto score_of = [&scores](Token id) {
    const float score = scores[static_cast<std::size_t>(id)];
    return std::isnan(score) ? -INFINITY : score;
  };
  std::vector<Token> pieces;
  for (Token id = 0; id < static_cast<Token>(scores.size()); ++id) {
    if (vocabulary_->kind(id) == PieceKind::kNormal) pieces.push_back(id);
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [&](Token a, Token b) { return score_of(a) > score_of(b); });
  const auto part = [this](std::string_view text) {
    const Token symbol = symbol_of(text);
    return symbol >= 0 || !is_one_character(text) ? symbol : virtual_symbol(text);
  };
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0 && score_of(pieces[i]) < score_of(pieces[i - 1])) ++rank;
    for_each_cut(vocabulary_->piece(pieces[i]), [&](std::string_view left, std::string_view right) {
      const Token first = part(left);
      const Token second = part(right);
      if (first >= 0 && second >= 0) merges_.add(first, second, {rank, pieces[i]});
    });
  }
}

// Without pre-tokenizer a text is one word, but no merge crosses the place before a "▁" unless
// some piece has "▁" behind another character. Where none has, words end there.
void BpeModel::find_word_ends(const std::vector<MergeSpec>& merges) {
  if (ignore_merges_ || vocabulary_->find_in_model(kMetaspace) < 0) return;
  const auto crosses = [](std::string_view piece) {
    for (std::size_t at = piece.find(kMetaspace, 1); at != std::string_view::npos;
         at = piece.find(kMetaspace, at + 1)) {
      if (!piece.substr(0, at).ends_with(kMetaspace)) return true;
    }
    return false;
  };
  for (const MergeSpec& merge : merges) {
    if (crosses(merge.left + merge.right)) return;
  }
  for (Token id = 0; kind_ == TokenizerModel::kScoreBpe && id < vocabulary_->size(); ++id) {
    if (vocabulary_->kind(id) == PieceKind::kNormal && crosses(vocabulary_->piece(id))) return;
  }
  splits_at_metaspace_ = true;
}

std::size_t BpeModel::word_end(std::string_view piece, std::size_t from) const {
  std::size_t end = std::min(piece.size(), from + kWordBytesMax);
  if (splits_at_metaspace_) {
    std::size_t at = from;
    while (piece.substr(at).starts_with(kMetaspace)) at += kMetaspace.size();
    end = std::min(end, piece.find(kMetaspace, at));
  }
  if (end < piece.size()) {
    while (end > from + 1 && (static_cast<unsigned char>(piece[end]) & 0xC0U) == 0x80) --end;
  }
  return end;
}

void BpeModel::encode(std::string_view piece, BpeScratch& scratch,
                      std::vector<Token>& tokens) const {
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t end = word_end(piece, at);
    encode_word(piece.substr(at, end - at), scratch, tokens);
    at = end;
  }
}

void BpeModel::encode_word(std::string_view word, BpeScratch& scratch,
                           std::vector<Token>& tokens) const {
  const bool cached = word.size() <= WordCache::kWordBytesMax;
  if (cached) {
    const std::span<const Token> known = scratch.cache.find(word);
    if (!known.empty()) {
      tokens.insert(tokens.end(), known.begin(), known.end());
      return;
    }
  }
  scratch.symbols.clear();
  const Token whole = ignore_merges_ ? find_whole(word) : -1;
  if (whole >= 0) {
    scratch.symbols.push_back(whole);
  } else if (kind_ == TokenizerModel::kByteBpe) {
    encode_bytes(word, scratch);
  } else {
    encode_characters(word, scratch);
  }
  if (cached) scratch.cache.insert(word, scratch.symbols);
  tokens.insert(tokens.end(), scratch.symbols.begin(), scratch.symbols.end());
}

Token BpeModel::find_whole(std::string_view word) const {
  if (word.size() > kPieceBytesMax) return -1;
  if (kind_ != TokenizerModel::kByteBpe) return vocabulary_->find_in_model(word);
  return vocabulary_->find_in_model(spell_bytes(word));
}

void BpeModel::encode_bytes(std::string_view word, BpeScratch& scratch) const {
  for (const char c : word) {
    const Token id = byte_tokens_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      scratch.symbols.push_back(id);
    } else {
      push_unknown({}, scratch.symbols);
    }
  }
  merges_.merge(scratch.symbols, scratch.merge);
}

void BpeModel::push_unknown(std::string_view character, std::vector<Token>& symbols) const {
  bool fallback = byte_fallback_ && !character.empty();
  for (const char c : character) {
    fallback = fallback && byte_tokens_[static_cast<unsigned char>(c)] >= 0;
  }
  if (fallback) {
    for (const char c : character) symbols.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
    return;
  }
  if (unknown_ < 0 || (fuse_unknown_ && !symbols.empty() && symbols.back() == unknown_)) return;
  symbols.push_back(unknown_);
}

void BpeModel::encode_characters(std::string_view word, BpeScratch& scratch) const {
  std::vector<Token>& symbols = scratch.symbols;
  for (std::size_t at = 0; at < word.size();) {
    const std::size_t length = std::min(utf8_length(word[at]), word.size() - at);
    const std::string_view character = word.substr(at, length);
    const auto byte = static_cast<unsigned char>(word[at]);
    Token id = byte < 128 ? ascii_tokens_[byte] : vocabulary_->find_in_model(character);
    if (id < 0 && kind_ == TokenizerModel::kScoreBpe) id = symbol_of(character);
    if (id >= 0) {
      symbols.push_back(id);
    } else {
      push_unknown(character, symbols);
    }
    at += length;
  }
  merges_.merge(symbols, scratch.merge);
  if (virtual_characters_.empty()) return;
  std::vector<Token> real;
  real.reserve(symbols.size());
  for (const Token id : symbols) {
    if (id < vocabulary_->size()) {
      real.push_back(id);
    } else {
      const auto index = static_cast<std::size_t>(id - vocabulary_->size());
      push_unknown(virtual_characters_[index], real);
    }
  }
  symbols.swap(real);
}

}  // namespace kun
