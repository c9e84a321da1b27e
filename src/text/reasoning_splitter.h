// Parts what a model thinks from what it says, byte by byte as the text arrives. Which part a byte
// belongs to depends on the bytes before it only, so every way of cutting the text into tokens
// gives the same two parts.
#pragma once

#include <cstdint>
#include <string>

#include "text/answer_syntax.h"
#include "text/marker_watch.h"

namespace kun {

// Not thread-safe.
class ReasoningSplitter {
 public:
  ReasoningSplitter(ReasoningSyntax syntax, ReasoningStart start);

  void feed(char byte, std::string& reasoning, std::string& content);
  void finish(std::string& reasoning, std::string& content);

  // Thinking now; at the start: the prompt or the model's habit say that it will.
  bool in_reasoning() const;

 private:
  enum class State : std::uint8_t { kStart, kReasoning, kContent };

  void leave_start(std::string& reasoning, std::string& content);
  void think(char byte, std::string& reasoning);
  void say(char byte, std::string& content);

  const bool trims_;    // line ends around the marks are not part of the text
  const bool expects_;  // thoughts come even if nothing opens them
  State state_;
  bool skipping_;  // line ends after a mark
  MarkerWatch open_;
  MarkerWatch close_;
  std::string before_;  // at the start: space before <think>
};

}  // namespace kun
