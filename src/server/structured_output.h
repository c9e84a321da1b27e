// What a request demands of the form of its answer: response_format, structured_outputs and the
// older guided_* names, read into the source of a grammar.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "server/request_json.h"
#include "text/grammar.h"

namespace kun {

// No grammar: the answer is free. Two demands at once are an error of `reader`, as is one that
// makes no sense by itself; whether a grammar compiles is found later.
struct StructuredOutput {
  std::optional<GrammarSource> grammar;
  std::string field;  // that demanded it
};
StructuredOutput read_structured_output(FieldReader& reader);

// What ends the thoughts that a prompt leaves open: "</think>", or nothing.
std::string_view thoughts_end(std::string_view prompt);

}  // namespace kun
