// Structural tags: free text in which certain beginnings ("<function=") lead into a form that must
// be kept to until its end. Both notations are read, the older of vLLM and SGLang ("structures" and
// "triggers") and the newer ("format").
#pragma once

#include "server/json_view.h"
#include "text/grammar.h"

namespace kun {

// kInvalidArgument says what is wrong with it. Requires: `tag` is an object.
Result<GrammarSource> grammar_of_structural_tag(JsonView tag);

}  // namespace kun
