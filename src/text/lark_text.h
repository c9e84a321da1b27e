// Pieces of grammars in Lark's notation, as llguidance reads it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"

namespace kun {

// "text" as a literal, quotes included. Lark's strings are JSON's.
std::string lark_string(std::string_view text);

// Whether a regular expression breaks off behind a backslash, so that it is none.
bool ends_in_escape(std::string_view pattern);

// A regular expression between slashes; not one that ends_in_escape().
std::string lark_regex(std::string_view pattern);

inline constexpr std::size_t kGrammarChoicesMax = 10'000;

// A grammar of one of these strings. Fails when there are none, or too many.
Result<GrammarSource> grammar_of_choices(const std::vector<std::string>& choices);

}  // namespace kun
