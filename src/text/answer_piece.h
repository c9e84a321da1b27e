// The parts of an answer: what a model thought, what it says, and which tools it calls; or the next
// piece of each. Pieces of a stream add up to the answer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kun {

struct ToolCallPiece {
  int index = 0;
  std::string name;       // not empty: this piece begins the call
  std::string arguments;  // JSON text, or the next of it
};

struct AnswerPiece {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }

  void begin_call(int index, std::string name) { calls.push_back({index, std::move(name), {}}); }

  void add_arguments(int index, std::string_view text) {
    if (calls.empty() || calls.back().index != index) calls.push_back({index, {}, {}});
    calls.back().arguments += text;
  }

  // Adds what follows.
  void append(AnswerPiece&& next) {
    reasoning += next.reasoning;
    content += next.content;
    for (ToolCallPiece& call : next.calls) {
      if (!call.name.empty()) begin_call(call.index, std::move(call.name));
      if (!call.arguments.empty()) add_arguments(call.index, call.arguments);
    }
  }
};

}  // namespace kun
