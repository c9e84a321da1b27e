// The pieces of a tokenizer by id and by spelling, and what each stands for in running text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer_spec.h"

namespace kun {

// Const once built; any thread may use it.
class Vocabulary {
 public:
  // Fails when there are too many pieces, or pieces without end.
  static Result<Vocabulary> create(const TokenizerSpec& spec);

  int size() const { return static_cast<int>(kinds_.size()); }  // highest id + 1
  bool contains(Token id) const { return id >= 0 && id < size(); }

  // Empty for ids outside of it.
  std::string_view piece(Token id) const { return contains(id) ? pieces_.at(id) : ""; }
  std::string_view bytes(Token id) const { return contains(id) ? bytes_.at(id) : ""; }
  PieceKind kind(Token id) const {
    return contains(id) ? kinds_[static_cast<std::size_t>(id)] : PieceKind::kAbsent;
  }
  bool is_special(Token id) const { return contains(id) && special_[static_cast<std::size_t>(id)]; }

  // Any piece, added tokens included; of equal spellings the model's own, else the lowest id.
  std::optional<Token> find(std::string_view piece) const;
  // A piece of the model itself: -1 when there is none.
  Token find_in_model(std::string_view piece) const;
  // The piece "<0x0A>" of a byte: -1 when there is none.
  Token find_byte(unsigned char byte) const;

 private:
  // Strings one behind the other.
  class Strings {
   public:
    void add(std::string_view text) {
      text_ += text;
      ends_.push_back(text_.size());
    }
    std::string_view at(Token id) const {
      const auto i = static_cast<std::size_t>(id);
      const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
      return std::string_view(text_).substr(begin, ends_[i] - begin);
    }

   private:
    std::string text_;
    std::vector<std::size_t> ends_;
  };

  void index_pieces();
  void insert(Token id);
  Token find_slot(std::string_view piece) const;

  Strings pieces_;
  Strings bytes_;
  std::vector<PieceKind> kinds_;
  std::vector<bool> special_;
  std::vector<bool> in_model_;
  std::vector<Token> slots_;  // open addressing; -1 is empty
  std::vector<std::uint32_t> hashes_;
};

// Bytes that decode one piece by the rules of `decoder`, without any trimming.
std::string decode_piece(const DecoderSpec& decoder, std::string_view piece);

}  // namespace kun
