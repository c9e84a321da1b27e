// From chat messages to the text a model reads: checks the messages, brings them into the form
// that templates expect, and renders. Every chat-like route shares it.
#pragma once

#include <optional>
#include <string>

#include "server/chat_tools.h"
#include "server/request_json.h"
#include "server/server_context.h"
#include "text/answer_syntax.h"

namespace kun {

struct ChatPrompt {
  std::string messages;         // JSON array for the template
  std::string filled_messages;  // with "" for contents that are null; empty: there are none
  ChatTools tools;
  std::string extra;          // JSON object of further variables, or empty
  std::string chat_template;  // the request's own, or empty
  bool add_generation_prompt = true;
  bool add_special_tokens = false;
  // The last message is the beginning of the answer; `cut` marks where it ends.
  bool continues = false;
  std::string cut;
  bool continues_thought = false;
  std::string echo;                    // what the last message says, if it is the assistant's
  std::optional<int> thinking_budget;  // tokens; thinking_token_budget comes before it
};

// Problems are left in `reader`.
ChatPrompt read_chat_prompt(FieldReader& reader, const ServerContext& context,
                            const ServedModel& model, Dialect dialect);

struct RenderedChat {
  std::string text;
  ReasoningStart start = ReasoningStart::kUndecided;
};

// The prompt's text; kInvalidArgument quotes the template.
Result<RenderedChat> render_chat(const ServedModel& model, const ChatPrompt& prompt);

}  // namespace kun
