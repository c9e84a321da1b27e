// Finds tool calls in what a model says, one automaton per syntax, byte by byte as the text
// arrives. Text that turns out to be no call is content; a call is announced once its name and the
// beginning of its arguments are there, and its arguments then flow as they are written.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/answer_piece.h"
#include "text/answer_syntax.h"

namespace kun {

// Not thread-safe.
class ToolCallParser {
 public:
  // Null for kNone. `tool_names`: what may be called; only kLlama3Json, which has no mark that
  // tells a call from other JSON, looks at it.
  static std::unique_ptr<ToolCallParser> create(ToolSyntax syntax,
                                                std::vector<std::string> tool_names);
  virtual ~ToolCallParser() = default;

  virtual void feed(char byte, AnswerPiece& piece) = 0;
  // The end of the text: what was held back and is no call is content.
  virtual void finish(AnswerPiece& piece) = 0;

  int call_count() const { return call_count_; }
  // No call is under way, and none broke off: every call's arguments are a JSON object.
  bool whole() const { return !open_ && !broken_; }

 protected:
  static constexpr std::size_t kNameBytesMax = 256;

  void begin_call(AnswerPiece& piece, std::string name);
  void add_arguments(AnswerPiece& piece, std::string_view text);
  void end_call() { open_ = false; }
  void break_call();

 private:
  int call_count_ = 0;
  bool open_ = false;
  bool broken_ = false;
};

// Of kDeepSeekV3 and kDeepSeekV31.
std::unique_ptr<ToolCallParser> make_marked_call_parser(bool fenced);
// Of kDeepSeekV32 and kDeepSeekV4, whose marks are all recognized.
std::unique_ptr<ToolCallParser> make_dsml_call_parser();
// Of kHermes and kLlama3Json.
std::unique_ptr<ToolCallParser> make_hermes_call_parser();
std::unique_ptr<ToolCallParser> make_llama3_call_parser(std::vector<std::string> tool_names);

// Bytes that names of tools are made of.
bool is_tool_name_byte(char byte);

}  // namespace kun
