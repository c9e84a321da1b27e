// A conversation as the encoders of DeepSeek V3.2 and V4 need it, and what the two formats share.
// Private to them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace kun {

inline constexpr std::string_view kBegin = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEnd = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";

struct EncoderParameter {
  std::string name;
  std::string value;
  bool is_string = false;  // the value stands as it is; else it is JSON
};

struct EncoderCall {
  std::string id;
  std::string name;
  std::vector<EncoderParameter> parameters;
};

struct EncoderMessage {
  std::string role;
  std::string content;
  std::string reasoning;
  std::string tool_call_id;
  std::vector<EncoderCall> calls;
  std::vector<std::string> tools;  // function descriptions, JSON
  std::string response_format;     // JSON, or empty
  std::string task;
};

// The index of the last message of a user or developer, whose roles `role_of` tells; -1: none.
template <class Messages, class RoleOf>
int last_user_of(const Messages& messages, const RoleOf& role_of) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    const std::string& role = role_of(messages[i]);
    if (role == "user" || role == "developer") return static_cast<int>(i);
  }
  return -1;
}

struct EncoderInput {
  std::vector<EncoderMessage> messages;
  bool thinking = false;
  std::optional<bool> drop_thinking;
  std::string reasoning_effort;

  bool has_tools() const;
  // Of the last user or developer message; -1: there is none.
  int last_user() const;
};

Result<EncoderInput> read_encoder_input(const ChatTemplateInput& input);

// <｜DSML｜BLOCK>...</｜DSML｜BLOCK> of a message's calls.
std::string dsml_calls(const EncoderMessage& message, std::string_view block);

// What follows the text of a message: its tools, where {} of `tools_text` stands, and the format
// that an answer must have.
std::string encoder_appendix(const EncoderMessage& message, std::string_view tools_text);

Status unknown_role(std::string_view role);

// An encoder whose conversations a Rendering(input, add_generation_prompt) writes.
template <class Rendering>
class DeepSeekEncoder final : public ChatTemplate {
 public:
  Result<std::string> render(const ChatTemplateInput& input) const override {
    ASSIGN_OR_RETURN(const EncoderInput read, read_encoder_input(input));
    if (read.messages.empty()) return invalid_argument("there are no messages");
    return Rendering(read, input.add_generation_prompt).render();
  }

  // What answers look like: see detect_answer_syntax().
  std::string_view source() const override { return Rendering::kSource; }
};

}  // namespace kun
