// The table is computed once from its rule; both directions fit into 512 entries.
#include "text/byte_alphabet.h"

#include <array>
#include <cstddef>

#include "text/utf8.h"

namespace kun {
namespace {

constexpr std::size_t kSpellingsEnd = 0x100 + 68;

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173 && byte <= 255);
}

struct Alphabet {
  std::array<char32_t, 256> spelling{};
  std::array<int, kSpellingsEnd> byte{};  // -1: spells nothing

  constexpr Alphabet() {
    for (int& entry : byte) entry = -1;
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      spelling[b] = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
      byte[spelling[b]] = static_cast<int>(b);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

char32_t spelling_of_byte(unsigned char byte) {
  return kAlphabet.spelling[byte];
}

std::string spell_bytes(std::string_view bytes) {
  std::string piece;
  piece.reserve(bytes.size() + bytes.size() / 2);
  for (const char byte : bytes) {
    append_utf8(piece, spelling_of_byte(static_cast<unsigned char>(byte)));
  }
  return piece;
}

std::optional<std::string> bytes_of_spelling(std::string_view piece) {
  std::string bytes;
  bytes.reserve(piece.size());
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t length = utf8_length(piece[at]);
    if (length > 2 || at + length > piece.size()) return std::nullopt;
    const char32_t code_point = first_code_point(piece.substr(at));
    if (code_point >= kSpellingsEnd || kAlphabet.byte[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kAlphabet.byte[code_point]));
    at += length;
  }
  return bytes;
}

}  // namespace kun
