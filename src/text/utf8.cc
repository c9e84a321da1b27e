// Implements UTF-8 checking and repair as a walk over lead and continuation bytes; runs of ASCII,
// eight bytes at a time, are the fast path.
#include "text/utf8.h"

#include <cstdint>
#include <cstring>

#include "base/check.h"

namespace kun {
namespace {

unsigned char byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

std::size_t ascii_run(std::string_view text, std::size_t from) {
  std::size_t at = from;
  while (at + 8 <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080U) != 0) break;
    at += 8;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at - from;
}

// Bytes a character has, by its first byte; 0 when no character starts so.
std::size_t length_by_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

// Whether `byte` may stand at `index` > 0 of a character that starts with `lead`. The second byte
// rules out overlong forms, surrogates and what lies beyond U+10FFFF (Unicode table 3-7).
bool may_follow(unsigned char lead, std::size_t index, unsigned char byte) {
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (index == 1) {
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  }
  return byte >= low && byte <= high;
}

// Bytes of the valid character at `at`; 0 when there is none, or only its beginning.
std::size_t character_at(std::string_view text, std::size_t at) {
  const unsigned char lead = byte_at(text, at);
  const std::size_t length = length_by_lead(lead);
  if (length == 0 || at + length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if (!may_follow(lead, i, byte_at(text, at + i))) return 0;
  }
  return length;
}

// The end of the longest valid text from `from`.
std::size_t valid_until(std::string_view text, std::size_t from) {
  std::size_t at = from;
  while (at < text.size()) {
    at += ascii_run(text, at);
    if (at == text.size()) break;
    const std::size_t length = character_at(text, at);
    if (length == 0) break;
    at += length;
  }
  return at;
}

}  // namespace

bool is_valid_utf8(std::string_view text) {
  return valid_until(text, 0) == text.size();
}

std::string to_valid_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  Utf8Repair repair;
  repair.feed(text, repaired);
  repair.finish(repaired);
  return repaired;
}

char32_t first_code_point(std::string_view text) {
  DCHECK(!text.empty());
  const unsigned char lead = byte_at(text, 0);
  const std::size_t length = utf8_length(text[0]);
  if (length == 1 || text.size() < length) return lead;
  char32_t value = lead & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) value = (value << 6U) | (byte_at(text, i) & 0x3FU);
  return value;
}

std::size_t previous_character(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && (byte_at(text, at) & 0xC0U) == 0x80) --at;
  return at;
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&text](char32_t bits) {
    text.push_back(static_cast<char>(static_cast<unsigned char>(bits)));
  };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0U | (code_point >> 6U));
    put(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    put(0xE0U | (code_point >> 12U));
    put(0x80U | ((code_point >> 6U) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  } else {
    put(0xF0U | (code_point >> 18U));
    put(0x80U | ((code_point >> 12U) & 0x3FU));
    put(0x80U | ((code_point >> 6U) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  }
}

// One byte while a character is unfinished, or where none starts. False when `byte` did not belong
// to the unfinished character and is still to be read.
bool Utf8Repair::take(unsigned char byte, std::string& text) {
  if (pending_count_ == 0) {
    const std::size_t length = length_by_lead(byte);
    if (length == 0) {
      text += kReplacementCharacter;
    } else if (length == 1) {
      text.push_back(static_cast<char>(byte));
    } else {
      pending_[pending_count_++] = static_cast<char>(byte);
    }
    return true;
  }
  const auto lead = static_cast<unsigned char>(pending_[0]);
  if (!may_follow(lead, pending_count_, byte)) {
    text += kReplacementCharacter;
    pending_count_ = 0;
    return false;
  }
  pending_[pending_count_++] = static_cast<char>(byte);
  if (pending_count_ == length_by_lead(lead)) {
    text.append(pending_.data(), pending_count_);
    pending_count_ = 0;
  }
  return true;
}

void Utf8Repair::feed(std::string_view bytes, std::string& text) {
  std::size_t at = 0;
  while (at < bytes.size()) {
    if (pending_count_ == 0) {
      const std::size_t end = valid_until(bytes, at);
      text += bytes.substr(at, end - at);
      at = end;
      if (at == bytes.size()) return;
    }
    if (take(byte_at(bytes, at), text)) ++at;
  }
}

void Utf8Repair::finish(std::string& text) {
  if (pending_count_ > 0) text += kReplacementCharacter;
  pending_count_ = 0;
}

}  // namespace kun
