// Grammars of tool calls, for tool_choice "required" or a named tool, and for strict tools: the
// answer is one call, or several, in the syntax of the model's family, and the arguments of each
// validate against the schema of its tool.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "text/grammar.h"
#include "text/tokenizer.h"

namespace kun {

// Named as vLLM's tool parsers are.
enum class ToolCallFormat : std::uint8_t {
  kDeepSeekV3,
  kDeepSeekV31,
  kDeepSeekV32,
  kDeepSeekV4,
  kHermes,
  kLlama3Json,
};

struct ToolSchema {
  std::string name;
  std::string parameters;  // JSON schema of an object, as text; empty: any object
};

struct ToolChoice {
  std::string_view name;  // the one tool to call; empty: any of them
  bool parallel = true;   // more than one call is fine
};

// At least one call, and nothing else. kInvalidArgument says why there is no such grammar: no tool
// of that name, or (V3.2 and V4, whose arguments are no JSON) a schema that is not an object with
// properties. Marks that `tokenizer` holds as special tokens are demanded as those tokens.
Result<GrammarSource> grammar_for_tools(std::span<const ToolSchema> tools, const ToolChoice& choice,
                                        ToolCallFormat format, const Tokenizer& tokenizer);

}  // namespace kun
