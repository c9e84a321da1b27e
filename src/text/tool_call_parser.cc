#include "text/tool_call_parser.h"

#include <utility>

#include "base/check.h"

namespace kun {

std::unique_ptr<ToolCallParser> ToolCallParser::create(ToolSyntax syntax,
                                                       std::vector<std::string> tool_names) {
  switch (syntax) {
    case ToolSyntax::kNone: break;
    case ToolSyntax::kDeepSeekV3: return make_marked_call_parser(true);
    case ToolSyntax::kDeepSeekV31: return make_marked_call_parser(false);
    case ToolSyntax::kDeepSeekV32:
    case ToolSyntax::kDeepSeekV4: return make_dsml_call_parser();
    case ToolSyntax::kHermes: return make_hermes_call_parser();
    case ToolSyntax::kLlama3Json: return make_llama3_call_parser(std::move(tool_names));
  }
  return nullptr;
}

void ToolCallParser::begin_call(AnswerPiece& piece, std::string name) {
  CHECK(!open_ && !name.empty());
  open_ = true;
  piece.begin_call(call_count_++, std::move(name));
}

void ToolCallParser::add_arguments(AnswerPiece& piece, std::string_view text) {
  CHECK(open_);
  if (!text.empty()) piece.add_arguments(call_count_ - 1, text);
}

void ToolCallParser::break_call() {
  open_ = false;
  broken_ = true;
}

bool is_tool_name_byte(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_' || byte == '-' || byte == '.' || byte == ':' ||
         byte == '/';
}

}  // namespace kun
