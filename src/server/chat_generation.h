// From a chat that has been read to a generation under way: renders the prompt, fits it into the
// context, sets up the parser of the answer. Every chat-like route ends here.
#pragma once

#include <memory>
#include <string_view>

#include "server/answer_writer.h"
#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/server_context.h"

namespace kun {

struct ChatGeneration {
  std::shared_ptr<const ServedModel> model;
  GenerationFields fields;
  ChatPrompt chat;
  std::unique_ptr<AnswerWriter> writer;
  std::string_view messages_name = "messages";  // of fields, for errors
  std::string_view max_tokens_name = "max_tokens";
};

// Answers the exchange, at once when the prompt cannot be made.
void start_chat(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                ChatGeneration generation);

// The tokens of a chat's prompt.
Result<std::vector<Token>> chat_tokens(const ServedModel& model, const ChatPrompt& chat,
                                       ReasoningStart& start);

}  // namespace kun
