#include "text/answer_parser.h"

#include <utility>

namespace kun {

AnswerParser::AnswerParser(AnswerParserOptions options)
    : reasoning_(options.syntax.reasoning, options.start),
      calls_(ToolCallParser::create(options.syntax.tools, std::move(options.tool_names))),
      calls_max_(options.calls_max) {}

AnswerPiece AnswerParser::feed(std::string_view text) {
  AnswerPiece piece;
  std::string content;
  for (const char byte : text) {
    reasoning_.feed(byte, piece.reasoning, content);
    if (content.empty()) continue;
    say(content, piece);
    content.clear();
  }
  return piece;
}

AnswerPiece AnswerParser::finish() {
  AnswerPiece piece;
  std::string content;
  reasoning_.finish(piece.reasoning, content);
  say(content, piece);
  if (calls_ != nullptr && !over_) calls_->finish(piece);
  return piece;
}

void AnswerParser::say(std::string_view content, AnswerPiece& piece) {
  if (calls_ == nullptr) {
    piece.content += content;
    return;
  }
  for (const char byte : content) {
    if (over_) return;
    calls_->feed(byte, piece);
    over_ = calls_max_ > 0 && calls_->call_count() >= calls_max_ && calls_->whole();
  }
}

}  // namespace kun
