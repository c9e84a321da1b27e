// GBNF, the notation of llama.cpp's grammars (root ::= "yes" | "no") and, near enough, of the EBNF
// that vLLM's clients send, translated to Lark.
#pragma once

#include <string_view>

#include "text/grammar.h"

namespace kun {

// Whether a grammar is written in GBNF rather than in Lark.
bool is_gbnf(std::string_view text);

// kInvalidArgument names the line that cannot be read.
Result<GrammarSource> gbnf_to_lark(std::string_view text);

}  // namespace kun
