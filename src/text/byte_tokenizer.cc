#include "text/byte_tokenizer.h"

#include <array>

#include "text/utf8.h"

namespace kun {
namespace {

constexpr std::string_view kEndPiece = "<end>";
constexpr int kByteCount = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = static_cast<char>(i);
  }

  std::vector<Token> encode(std::string_view text, bool /*add_special_tokens*/) const override {
    std::vector<Token> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }

  std::string_view bytes(Token id, bool skip_special_tokens) const override {
    if (id >= 0 && id < kByteCount) return {&bytes_[static_cast<std::size_t>(id)], 1};
    return id == kByteTokenizerEnd && !skip_special_tokens ? kEndPiece : std::string_view();
  }

  std::string decode(std::span<const Token> ids, bool skip_special_tokens) const override {
    std::string text;
    for (const Token id : ids) text += bytes(id, skip_special_tokens);
    return to_valid_utf8(text);
  }

  std::string_view piece(Token id) const override { return bytes(id, false); }

  std::optional<Token> find(std::string_view piece) const override {
    if (piece == kEndPiece) return kByteTokenizerEnd;
    if (piece.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(piece.front());
  }

  int vocabulary_size() const override { return kByteCount + 1; }
  bool is_special(Token id) const override { return id == kByteTokenizerEnd; }
  std::optional<Token> bos() const override { return std::nullopt; }
  std::optional<Token> eos() const override { return kByteTokenizerEnd; }
  bool strips_first_space() const override { return false; }

 private:
  std::array<char, kByteCount> bytes_{};
};

}  // namespace

std::unique_ptr<const Tokenizer> make_byte_tokenizer() {
  return std::make_unique<const ByteTokenizer>();
}

}  // namespace kun
