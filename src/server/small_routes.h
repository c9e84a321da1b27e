// The routes beside generation: what is served, is it well, and text to tokens and back.
#pragma once

#include <memory>

#include "server/chat_prompt.h"
#include "server/server_context.h"

namespace kun {

void handle_models(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_model(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_health(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_version(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_metrics(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_tokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_detokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

// What a /tokenize request says. Problems are left in `reader`.
struct TokenizeRequest {
  std::optional<ApiError> not_found;
  std::optional<std::string> prompt;
  ChatPrompt chat;  // without a prompt
  bool with_pieces = false;
  bool add_special_tokens = true;
};
TokenizeRequest read_tokenize_request(FieldReader& reader, const ServerContext& context,
                                      const ServedModel& model, Dialect dialect);

struct DetokenizeRequest {
  std::optional<ApiError> not_found;
  std::vector<Token> tokens;
};
DetokenizeRequest read_detokenize_request(FieldReader& reader, const ServerContext& context,
                                          const ServedModel& model);

}  // namespace kun
