// Strings lie in two arenas, and the index over them is one flat table: 128,000 pieces load in a
// few milliseconds and a lookup touches two cache lines.
#include "text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "text/byte_alphabet.h"

namespace kun {
namespace {

constexpr std::size_t kPieceCountMax = 8U << 20U;
constexpr std::size_t kPieceBytesMax = 64U << 10U;

std::uint32_t hash_of(std::string_view piece) {
  const auto hash = static_cast<std::uint64_t>(std::hash<std::string_view>{}(piece));
  return static_cast<std::uint32_t>(hash ^ (hash >> 32U));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// The byte that "<0x0A>" names.
std::optional<char> byte_of_name(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const int high = hex_digit(piece[3]);
  const int low = hex_digit(piece[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<char>(static_cast<unsigned char>(high * 16 + low));
}

}  // namespace

std::string decode_piece(const DecoderSpec& decoder, std::string_view piece) {
  if (decoder.byte_level) {
    // A piece with characters outside the alphabet ("<｜User｜>") stands for itself.
    if (std::optional<std::string> bytes = bytes_of_spelling(piece)) return *std::move(bytes);
    return std::string(piece);
  }
  if (decoder.byte_fallback) {
    if (const std::optional<char> byte = byte_of_name(piece)) return std::string(1, *byte);
  }
  std::string text;
  while (!decoder.space.empty() && !piece.empty()) {
    const std::size_t at = piece.find(decoder.space);
    text += piece.substr(0, at);
    if (at == std::string_view::npos) return text;
    text += ' ';
    piece.remove_prefix(at + decoder.space.size());
  }
  text += piece;
  return text;
}

Result<Vocabulary> Vocabulary::create(const TokenizerSpec& spec) {
  std::size_t count = spec.pieces.size();
  for (const AddedTokenSpec& token : spec.added_tokens) {
    if (token.id < 0) {
      return invalid_argument(fmt::format("an added token has the id {}, below zero", token.id));
    }
    count = std::max(count, static_cast<std::size_t>(token.id) + 1);
  }
  if (count == 0) return invalid_argument("the tokenizer has no pieces");
  if (count > kPieceCountMax) {
    return invalid_argument(
        fmt::format("the tokenizer has {} ids, more than {}", count, kPieceCountMax));
  }
  Vocabulary vocabulary;
  vocabulary.special_.resize(count);
  vocabulary.in_model_.resize(count);
  std::vector<const AddedTokenSpec*> added(count);
  for (const AddedTokenSpec& token : spec.added_tokens) {
    added[static_cast<std::size_t>(token.id)] = &token;
  }
  for (std::size_t id = 0; id < count; ++id) {
    const bool listed = id < spec.pieces.size() && spec.pieces[id].kind != PieceKind::kAbsent;
    const PieceKind kind = listed ? spec.pieces[id].kind : PieceKind::kAbsent;
    const std::string_view piece = added[id] != nullptr ? added[id]->content
                                   : listed             ? spec.pieces[id].text
                                                        : std::string_view{};
    if (piece.size() > kPieceBytesMax) {
      return invalid_argument(fmt::format("piece {} of the tokenizer has {} bytes, more than {}",
                                          id, piece.size(), kPieceBytesMax));
    }
    vocabulary.pieces_.add(piece);
    vocabulary.bytes_.add(decode_piece(spec.decoder, piece));
    const bool special = added[id] != nullptr && added[id]->special;
    vocabulary.special_[id] = special || (added[id] == nullptr && kind == PieceKind::kControl);
    vocabulary.in_model_[id] =
        kind == PieceKind::kNormal || kind == PieceKind::kUnused || kind == PieceKind::kByte;
    vocabulary.kinds_.push_back(added[id] == nullptr ? kind
                                : special            ? PieceKind::kControl
                                                     : PieceKind::kUserDefined);
  }
  vocabulary.index_pieces();
  return vocabulary;
}

void Vocabulary::index_pieces() {
  std::size_t capacity = 16;
  while (capacity < kinds_.size() * 2) capacity *= 2;
  slots_.assign(capacity, -1);
  hashes_.resize(capacity);
  for (const bool model_first : {true, false}) {
    for (Token id = 0; id < size(); ++id) {
      const auto i = static_cast<std::size_t>(id);
      if (in_model_[i] != model_first || kinds_[i] == PieceKind::kAbsent) continue;
      insert(id);
    }
  }
}

void Vocabulary::insert(Token id) {
  const std::string_view text = piece(id);
  const std::uint32_t hash = hash_of(text);
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  while (slots_[at] >= 0) {
    if (hashes_[at] == hash && piece(slots_[at]) == text) return;
    at = (at + 1) & mask;
  }
  slots_[at] = id;
  hashes_[at] = hash;
}

Token Vocabulary::find_slot(std::string_view text) const {
  const std::uint32_t hash = hash_of(text);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at] >= 0; at = (at + 1) & mask) {
    if (hashes_[at] == hash && piece(slots_[at]) == text) return slots_[at];
  }
  return -1;
}

std::optional<Token> Vocabulary::find(std::string_view text) const {
  const Token id = find_slot(text);
  return id < 0 ? std::nullopt : std::optional<Token>(id);
}

Token Vocabulary::find_in_model(std::string_view text) const {
  const Token id = find_slot(text);
  return id >= 0 && in_model_[static_cast<std::size_t>(id)] ? id : -1;
}

Token Vocabulary::find_byte(unsigned char byte) const {
  return find_in_model(fmt::format("<0x{:02X}>", byte));
}

}  // namespace kun
