// The tokenizer of script models: a token is a byte, and one more token ends the text.
#pragma once

#include <memory>

#include "text/tokenizer.h"

namespace kun {

inline constexpr Token kByteTokenizerEnd = 256;

// Ids 0..255 are the bytes of UTF-8 text, 256 is the (special) end token.
std::unique_ptr<const Tokenizer> make_byte_tokenizer();

}  // namespace kun
