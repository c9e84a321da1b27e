// From chat messages to the text a model reads: checks the messages, brings them into the form
// that templates expect, and renders. /v1/chat/completions and /tokenize share it.
#pragma once

#include <optional>
#include <string>

#include "server/request_json.h"
#include "server/server_context.h"

namespace kun {

struct ChatPrompt {
  std::string messages;       // JSON array for the template
  std::string tools;          // JSON array, or empty
  std::string extra;          // JSON object of further variables, or empty
  std::string chat_template;  // the request's own, or empty
  bool add_generation_prompt = true;
  bool add_special_tokens = false;
};

// Problems are left in `reader`.
ChatPrompt read_chat_prompt(FieldReader& reader, const ServerContext& context);

// The prompt's text; kInvalidArgument quotes the template.
Result<std::string> render_chat(const ServedModel& model, const ChatPrompt& prompt);

}  // namespace kun
