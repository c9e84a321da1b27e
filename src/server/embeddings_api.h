// Texts as vectors, and how alike texts are: /v1/embeddings (OpenAI's, with vLLM's additions) and
// /v1/score (vLLM's).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/pooling.h"
#include "plan/refusal.h"
#include "server/chat_prompt.h"
#include "server/server_context.h"

namespace kun {

void handle_embeddings(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_score(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

// What both say.
struct PoolingFields {
  std::string model;  // as the client named it
  Pooling pooling = Pooling::kLast;
  bool normalize = true;
  bool add_special_tokens = true;
  std::optional<int> truncate_prompt_tokens;  // -1: to what fits
  bool truncate_right = false;
  int priority = 0;
  std::string cache_salt;
  Deadlines deadlines;  // from the arrival of the request
  std::string request_id;
};

struct EmbeddingRequest {
  PoolingFields fields;
  bool base64 = false;
  std::size_t dimensions = 0;      // 0: all
  std::optional<JsonView> input;   // a string, strings, token ids, or arrays of token ids
  std::optional<ChatPrompt> chat;  // instead
};

struct ScoreRequest {
  PoolingFields fields;
  std::optional<JsonView> first;  // as `input`
  std::optional<JsonView> second;
};

// Problems are left in `reader`, an unknown model in `not_found`.
EmbeddingRequest read_embedding_request(FieldReader& reader, const ServerContext& context,
                                        const ServedModel& model,
                                        std::optional<ApiError>& not_found);
ScoreRequest read_score_request(FieldReader& reader, const ServerContext& context,
                                const ServedModel& model, std::optional<ApiError>& not_found);

}  // namespace kun
