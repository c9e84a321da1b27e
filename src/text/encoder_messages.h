// A conversation as the encoders of DeepSeek V3.2 and V4 need it. Private to them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"

namespace kun {

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

}  // namespace kun
