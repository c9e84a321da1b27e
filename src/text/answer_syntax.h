// Which marks a family of models puts around its thoughts and its tool calls. The names are those
// of vLLM's --reasoning-parser and --tool-call-parser.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace kun {

enum class ReasoningSyntax : std::uint8_t {
  kNone,
  kDeepSeekR1,  // thinks until </think>, whether or not it says <think>
  kDeepSeekV3,  // thinks when the prompt ends in <think>; nothing is trimmed
  kQwen3,       // thinks when prompt or answer open <think>
};

enum class ToolSyntax : std::uint8_t {
  kNone,
  kDeepSeekV3,  // <｜tool▁calls▁begin｜> ... function<｜tool▁sep｜>NAME\n```json\n{}\n```
  kDeepSeekV31,  // <｜tool▁calls▁begin｜> ... NAME<｜tool▁sep｜>{}
  kDeepSeekV32,  // <｜DSML｜function_calls>
  kDeepSeekV4,   // <｜DSML｜tool_calls>
  kHermes,       // <tool_call>{"name": ..., "arguments": {}}</tool_call>
  kLlama3Json,   // {"name": ..., "parameters": {}}
};

struct AnswerSyntax {
  ReasoningSyntax reasoning = ReasoningSyntax::kNone;
  ToolSyntax tools = ToolSyntax::kNone;
};

// What a chat template tells of the answers it expects.
AnswerSyntax detect_answer_syntax(std::string_view chat_template);

// "none" and vLLM's names and synonyms; nullopt for others.
std::optional<ReasoningSyntax> parse_reasoning_syntax(std::string_view name);
std::optional<ToolSyntax> parse_tool_syntax(std::string_view name);
std::vector<std::string_view> reasoning_syntax_names();
std::vector<std::string_view> tool_syntax_names();

// Marks that a tokenizer may hold as special tokens and that must reach the parser all the same.
std::vector<std::string_view> answer_marks(AnswerSyntax syntax);

// How a prompt leaves the matter of thinking.
enum class ReasoningStart : std::uint8_t {
  kUndecided,  // the model opens its thoughts, or does not
  kOpen,       // the prompt ends in <think>
  kClosed,     // the prompt ends in </think>, or the answer is under way
};
ReasoningStart reasoning_start(std::string_view prompt);

}  // namespace kun
