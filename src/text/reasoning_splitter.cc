#include "text/reasoning_splitter.h"

namespace kun {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

bool trims(ReasoningSyntax syntax) {
  return syntax == ReasoningSyntax::kDeepSeekR1 || syntax == ReasoningSyntax::kQwen3;
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(ReasoningSyntax syntax, ReasoningStart start)
    : trims_(trims(syntax)),
      expects_(start == ReasoningStart::kOpen || syntax == ReasoningSyntax::kDeepSeekR1),
      state_(syntax == ReasoningSyntax::kNone || start == ReasoningStart::kClosed ? State::kContent
                                                                                  : State::kStart),
      skipping_(trims_ && start == ReasoningStart::kClosed),
      open_({kOpen}, " \n"),
      close_({kClose}, trims_ ? "\n" : "") {}

bool ReasoningSplitter::in_reasoning() const {
  return state_ == State::kReasoning || (state_ == State::kStart && expects_);
}

void ReasoningSplitter::feed(char byte, std::string& reasoning, std::string& content) {
  if (state_ == State::kReasoning) return think(byte, reasoning);
  if (state_ == State::kContent) return say(byte, content);
  std::string text;
  if (open_.feed(byte, text) == 0) {
    open_.take_held();
    state_ = State::kReasoning;
    skipping_ = trims_;
  } else if (!text.empty()) {
    before_ = text + open_.take_held();
    leave_start(reasoning, content);
  }
}

// Nothing opened the thoughts.
void ReasoningSplitter::leave_start(std::string& reasoning, std::string& content) {
  state_ = expects_ ? State::kReasoning : State::kContent;
  skipping_ = trims_ && expects_;
  const std::string text = std::exchange(before_, {});
  for (const char byte : text) feed(byte, reasoning, content);
}

void ReasoningSplitter::think(char byte, std::string& reasoning) {
  if (skipping_ && byte == '\n') return;
  skipping_ = false;
  if (close_.feed(byte, reasoning) != 0) return;
  close_.take_held();
  state_ = State::kContent;
  skipping_ = trims_;
}

void ReasoningSplitter::say(char byte, std::string& content) {
  if (skipping_ && byte == '\n') return;
  skipping_ = false;
  content += byte;
}

void ReasoningSplitter::finish(std::string& reasoning, std::string& content) {
  if (state_ == State::kStart) {
    before_ = open_.take_held();
    leave_start(reasoning, content);
  }
  if (state_ == State::kReasoning) reasoning += close_.take_held();
}

}  // namespace kun
