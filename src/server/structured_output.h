// What a request demands of the form of its answer: response_format, structured_outputs and the
// older guided_* names, read into the source of a grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/request_json.h"
#include "text/grammar.h"

namespace kun {

// nullopt: the answer is free. Two demands at once are an error of `reader`, as is one that makes
// no sense by itself; whether a grammar compiles is found later.
std::optional<GrammarSource> read_structured_output(FieldReader& reader);

// What ends the thoughts that a prompt leaves open: "</think>", or nothing.
std::string_view thoughts_end(std::string_view prompt);

// A grammar of one of these strings. Fails when there are none, or too many.
Result<GrammarSource> grammar_of_choices(const std::vector<std::string>& choices);

}  // namespace kun
