// Structural tags: free text in which certain beginnings ("<function=") lead into a form that must
// be kept to until its end. Both notations are read, the older of vLLM and SGLang ("structures" and
// "triggers") and the newer ("format").
#pragma once

#include <string_view>

#include "text/grammar.h"

namespace kun {

// `tag`: a JSON object, as text. kInvalidArgument says what is wrong with it.
Result<GrammarSource> grammar_of_structural_tag(std::string_view tag);

}  // namespace kun
