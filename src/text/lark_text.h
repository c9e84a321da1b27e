// Pieces of grammars in Lark's notation, as llguidance reads it.
#pragma once

#include <string>
#include <string_view>

namespace kun {

// "text" as a literal, quotes included. Lark's strings are JSON's.
std::string lark_string(std::string_view text);

// A regular expression between slashes.
std::string lark_regex(std::string_view pattern);

}  // namespace kun
