#include "text/answer_syntax.h"

#include <array>
#include <utility>

namespace kun {
namespace {

constexpr std::array<std::pair<std::string_view, ReasoningSyntax>, 6> kReasoningNames = {{
    {"none", ReasoningSyntax::kNone},
    {"deepseek_r1", ReasoningSyntax::kDeepSeekR1},
    {"deepseek_v3", ReasoningSyntax::kDeepSeekV3},
    {"deepseek_v31", ReasoningSyntax::kDeepSeekV3},
    {"deepseek_v4", ReasoningSyntax::kDeepSeekV3},
    {"qwen3", ReasoningSyntax::kQwen3},
}};

constexpr std::array<std::pair<std::string_view, ToolSyntax>, 7> kToolNames = {{
    {"none", ToolSyntax::kNone},
    {"deepseek_v3", ToolSyntax::kDeepSeekV3},
    {"deepseek_v31", ToolSyntax::kDeepSeekV31},
    {"deepseek_v32", ToolSyntax::kDeepSeekV32},
    {"deepseek_v4", ToolSyntax::kDeepSeekV4},
    {"hermes", ToolSyntax::kHermes},
    {"llama3_json", ToolSyntax::kLlama3Json},
}};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

ToolSyntax detect_tools(std::string_view source) {
  if (has(source, "DSML")) {
    return has(source, "tool_calls>") ? ToolSyntax::kDeepSeekV4 : ToolSyntax::kDeepSeekV32;
  }
  if (has(source, "<｜tool▁calls▁begin｜>")) {
    return has(source, "```json") ? ToolSyntax::kDeepSeekV3 : ToolSyntax::kDeepSeekV31;
  }
  // Qwen3-Coder and GLM write XML inside of the same mark: not this syntax.
  const bool xml = has(source, "<function=") || has(source, "<arg_key>");
  if (has(source, "<tool_call>") && !xml) return ToolSyntax::kHermes;
  if (has(source, "<|start_header_id|>") && has(source, "\"parameters\"")) {
    return ToolSyntax::kLlama3Json;
  }
  return ToolSyntax::kNone;
}

ReasoningSyntax detect_reasoning(std::string_view source) {
  if (has(source, "DSML")) return ReasoningSyntax::kDeepSeekV3;
  const bool deepseek = has(source, "<｜Assistant｜>");
  if (!has(source, "</think>")) return ReasoningSyntax::kNone;
  // V3.1 and later switch thinking on and off; R1 and its distillations always think.
  if (deepseek && has(source, "thinking")) return ReasoningSyntax::kDeepSeekV3;
  return deepseek ? ReasoningSyntax::kDeepSeekR1 : ReasoningSyntax::kQwen3;
}

template <class Names>
auto parse(const Names& names, std::string_view name) {
  std::optional<decltype(names.front().second)> found;
  for (const auto& [known, value] : names) {
    if (known == name) found = value;
  }
  return found;
}

template <class Names>
std::vector<std::string_view> list(const Names& names) {
  std::vector<std::string_view> all;
  for (const auto& entry : names) all.push_back(entry.first);
  return all;
}

}  // namespace

AnswerSyntax detect_answer_syntax(std::string_view chat_template) {
  return {detect_reasoning(chat_template), detect_tools(chat_template)};
}

std::optional<ReasoningSyntax> parse_reasoning_syntax(std::string_view name) {
  return parse(kReasoningNames, name);
}

std::optional<ToolSyntax> parse_tool_syntax(std::string_view name) {
  return parse(kToolNames, name);
}

std::vector<std::string_view> reasoning_syntax_names() {
  return list(kReasoningNames);
}

std::vector<std::string_view> tool_syntax_names() {
  return list(kToolNames);
}

std::vector<std::string_view> answer_marks(AnswerSyntax syntax) {
  std::vector<std::string_view> marks;
  if (syntax.reasoning != ReasoningSyntax::kNone) marks = {"<think>", "</think>"};
  switch (syntax.tools) {
    case ToolSyntax::kNone: break;
    case ToolSyntax::kDeepSeekV3:
    case ToolSyntax::kDeepSeekV31:
      marks.insert(marks.end(), {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                                 "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"});
      break;
    case ToolSyntax::kDeepSeekV32:
    case ToolSyntax::kDeepSeekV4: marks.emplace_back("｜DSML｜"); break;
    case ToolSyntax::kHermes: marks.insert(marks.end(), {"<tool_call>", "</tool_call>"}); break;
    case ToolSyntax::kLlama3Json: marks.emplace_back("<|python_tag|>"); break;
  }
  return marks;
}

ReasoningStart reasoning_start(std::string_view prompt) {
  while (!prompt.empty() && (prompt.back() == '\n' || prompt.back() == ' ')) {
    prompt.remove_suffix(1);
  }
  if (prompt.ends_with("</think>")) return ReasoningStart::kClosed;
  return prompt.ends_with("<think>") ? ReasoningStart::kOpen : ReasoningStart::kUndecided;
}

}  // namespace kun
