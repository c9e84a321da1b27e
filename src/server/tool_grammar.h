// Grammars of tool calls, for tool_choice "required" or a named tool, and where a model may call or
// answer: for strict tools, and for response_format beside tools. A call is in the syntax of the
// model's family, and its arguments validate against the schema of its tool.
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
  std::string parameters;      // JSON schema of an object, as text; empty: any object
  bool any_arguments = false;  // whatever the schema says
};

// What an answer may be instead of calls.
enum class OtherAnswer : std::uint8_t {
  kNone,
  kText,    // any text, which may go before calls (not before those of kLlama3Json)
  kFormat,  // what ToolChoice::format demands
};

struct ToolChoice {
  std::string_view name;  // the one tool to call; empty: any of them
  bool parallel = true;   // more than one call is fine
  OtherAnswer other = OtherAnswer::kNone;
  const GrammarSource* format = nullptr;  // kJson or kRegex
};

// At least one call and nothing else, or what `choice` allows beside. kInvalidArgument says why
// there is no such grammar: no tool of that name, or (V3.2 and V4, whose arguments are no JSON) a
// schema that is not an object with properties. Marks that `tokenizer` holds as special tokens are
// demanded as those tokens.
Result<GrammarSource> grammar_for_tools(std::span<const ToolSchema> tools, const ToolChoice& choice,
                                        ToolCallFormat format, const Tokenizer& tokenizer);

}  // namespace kun
