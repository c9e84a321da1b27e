// GPT-2's byte alphabet: byte-level vocabularies spell every byte as one printable character, so
// that a vocabulary is a list of words without control characters or half characters in it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace kun {

// The code point that spells `byte`. 33-126, 161-172 and 174-255 stand for themselves; the other
// 68 bytes, in ascending order, are U+0100 upward (space is U+0120, "Ġ").
char32_t spelling_of_byte(unsigned char byte);

std::string spell_bytes(std::string_view bytes);

// The bytes that `piece` spells; nullopt when a character of it is outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view piece);

}  // namespace kun
