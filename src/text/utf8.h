// UTF-8: checking, repairing and walking. Repair follows the Unicode standard's "maximal subpart"
// practice (chapter 3.9), as Rust's from_utf8_lossy and the WHATWG decoder do: every longest
// invalid prefix of a character becomes one U+FFFD, and the next byte is looked at afresh.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace kun {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

bool is_valid_utf8(std::string_view text);

// `text` with everything invalid replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);

// Bytes in the character that starts with `lead`. Requires: `lead` starts a character.
constexpr std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character at the start of `text`. Requires: `text` is valid and not empty.
char32_t first_code_point(std::string_view text);

// The start of the character that ends at `end`. Requires: valid text, 0 < end <= size.
std::size_t previous_character(std::string_view text, std::size_t end);

void append_utf8(std::string& text, char32_t code_point);

// Bytes in any portions to valid UTF-8, the same text whatever the portions are. An unfinished
// character at the end of a portion is held back. One per stream; not thread-safe.
class Utf8Repair {
 public:
  void feed(std::string_view bytes, std::string& text);
  void finish(std::string& text);  // an unfinished character becomes U+FFFD

  // Bytes held back, at most 3.
  std::size_t pending_count() const { return pending_count_; }

 private:
  bool take(unsigned char byte, std::string& text);

  std::array<char, 4> pending_{};
  std::size_t pending_count_ = 0;
};

}  // namespace kun
