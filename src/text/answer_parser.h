// From the text of an answer to its parts: thoughts first, then what is said and the tool calls in
// it. The same automaton serves streams and whole answers, so both say the same.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_piece.h"
#include "text/answer_syntax.h"
#include "text/reasoning_splitter.h"
#include "text/tool_call_parser.h"

namespace kun {

struct AnswerParserOptions {
  AnswerSyntax syntax;
  ReasoningStart start = ReasoningStart::kUndecided;
  std::vector<std::string> tool_names;
  int calls_max = 0;  // 0: any number; after so many the answer is over
};

// Not thread-safe.
class AnswerParser {
 public:
  explicit AnswerParser(AnswerParserOptions options);

  AnswerPiece feed(std::string_view text);
  AnswerPiece finish();

  bool in_reasoning() const { return reasoning_.in_reasoning(); }

  // The last call that was allowed is whole: what follows is dropped.
  bool over() const { return over_; }

  // There are calls, and the arguments of each are a JSON object.
  bool calls_tools() const {
    return calls_ != nullptr && calls_->call_count() > 0 && calls_->whole();
  }

 private:
  void say(std::string_view content, AnswerPiece& piece);

  ReasoningSplitter reasoning_;
  std::unique_ptr<ToolCallParser> calls_;  // null: text only
  int calls_max_;
  bool over_ = false;
};

}  // namespace kun
