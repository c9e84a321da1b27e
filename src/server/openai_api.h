// The routes that generate in OpenAI's and DeepSeek's ways. Each reads its request into native
// values, turns it into tokens and starts a GenerationJob.
#pragma once

#include <memory>

#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/server_context.h"

namespace kun {

void handle_chat_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

// What a chat request says.
struct ChatRequest {
  GenerationFields fields;
  std::string max_tokens_name;  // the field that counts
  ChatPrompt chat;
};

// Problems are left in `reader`, an unknown model in `not_found`.
ChatRequest read_chat_request(FieldReader& reader, const ServerContext& context,
                              const ServedModel& model, Dialect dialect,
                              std::optional<ApiError>& not_found);

// What a completions request says, its prompt apart.
struct CompletionRequest {
  GenerationFields fields;
  std::string_view max_tokens_name;  // of the field that counts
  bool echo = false;
  bool prompt_logprobs = false;  // vLLM's own field is wanted
  bool add_special_tokens = true;
  std::optional<std::string> suffix;
  std::optional<JsonView> prompt;
};
CompletionRequest read_completion_request(FieldReader& reader, const ServerContext& context,
                                          const ServedModel& model,
                                          std::optional<ApiError>& not_found);

}  // namespace kun
