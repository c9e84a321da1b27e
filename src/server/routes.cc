#include "server/routes.h"

#include <array>

#include "server/anthropic_api.h"
#include "server/embeddings_api.h"
#include "server/json_writer.h"
#include "server/openai_api.h"
#include "server/openapi.h"
#include "server/responses_api.h"
#include "server/small_routes.h"

namespace kun {
namespace {

void chat_fields(FieldReader& reader, const ServerContext& context, const ServedModel& model) {
  std::optional<ApiError> not_found;
  read_chat_request(reader, context, model, Dialect::kOpenAi, not_found);
}

void completion_fields(FieldReader& reader, const ServerContext& context,
                       const ServedModel& model) {
  std::optional<ApiError> not_found;
  read_completion_request(reader, context, model, not_found);
  if (!reader.failed()) reader.fail("prompt", "prompt is missing");
}

JsonView empty_object() {
  static const auto* empty = new JsonDocument(*JsonDocument::parse("{}", {}));
  return empty->root();
}

void message_fields(FieldReader& reader, const ServerContext& context, const ServedModel&) {
  translate_messages(reader, empty_object(), context.options.limits, true);
}

void count_fields(FieldReader& reader, const ServerContext& context, const ServedModel&) {
  translate_messages(reader, empty_object(), context.options.limits, false);
}

void response_fields(FieldReader& reader, const ServerContext& context, const ServedModel&) {
  static_cast<void>(reader.string("previous_response_id", 128));
  translate_responses(reader, empty_object(), context.options.limits, "");
}

void embedding_fields(FieldReader& reader, const ServerContext& context, const ServedModel& model) {
  std::optional<ApiError> not_found;
  read_embedding_request(reader, context, model, not_found);
}

void score_fields(FieldReader& reader, const ServerContext& context, const ServedModel& model) {
  std::optional<ApiError> not_found;
  read_score_request(reader, context, model, not_found);
}

void tokenize_fields(FieldReader& reader, const ServerContext& context, const ServedModel& model) {
  read_tokenize_request(reader, context, model, Dialect::kOpenAi);
}

void detokenize_fields(FieldReader& reader, const ServerContext& context,
                       const ServedModel& model) {
  read_detokenize_request(reader, context, model);
}

constexpr RouteKind kApi = RouteKind::kApi;
constexpr RouteKind kHealth = RouteKind::kHealth;

constexpr std::array kRoutes = {
    Route{"POST", "/v1/chat/completions", kApi, true, handle_chat_completions,
          "answer a chat, in OpenAI's shape", chat_fields},
    Route{"POST", "/chat/completions", kApi, true, handle_chat_completions,
          "answer a chat, in DeepSeek's shape", chat_fields},
    Route{"POST", "/beta/chat/completions", kApi, true, handle_chat_completions,
          "answer a chat, in DeepSeek's shape", chat_fields},
    Route{"POST", "/v1/completions", kApi, true, handle_completions,
          "continue a text, in OpenAI's shape", completion_fields},
    Route{"POST", "/completions", kApi, true, handle_completions,
          "continue a text, in DeepSeek's shape", completion_fields},
    Route{"POST", "/beta/completions", kApi, true, handle_completions,
          "continue a text or fill in between a prompt and a suffix, in DeepSeek's shape",
          completion_fields},
    Route{"POST", "/v1/responses", kApi, true, handle_responses,
          "answer as output items, OpenAI's Responses", response_fields},
    Route{"GET", "/v1/responses/*", kApi, false, handle_stored_response, "an earlier answer"},
    Route{"DELETE", "/v1/responses/*", kApi, false, handle_delete_response,
          "forget an earlier answer"},
    Route{"POST", "/v1/messages", kApi, true, handle_messages,
          "answer as content blocks, Anthropic's Messages", message_fields},
    Route{"POST", "/v1/messages/count_tokens", kApi, true, handle_count_tokens,
          "how many tokens a request of /v1/messages has", count_fields},
    Route{"POST", "/v1/embeddings", kApi, true, handle_embeddings,
          "texts as vectors: the model's last hidden states", embedding_fields},
    Route{"POST", "/v1/score", kApi, true, handle_score,
          "how alike texts are: the cosine of their embeddings", score_fields},
    Route{"POST", "/score", kApi, true, handle_score,
          "how alike texts are: the cosine of their embeddings", score_fields},
    Route{"GET", "/v1/models", kApi, false, handle_models, "the models served"},
    Route{"GET", "/models", kApi, false, handle_models, "the models served"},
    Route{"GET", "/v1/models/*", kApi, false, handle_model, "one model"},
    Route{"POST", "/tokenize", kApi, true, handle_tokenize, "the tokens of a text or a chat",
          tokenize_fields},
    Route{"POST", "/detokenize", kApi, true, handle_detokenize, "the text of tokens",
          detokenize_fields},
    Route{"GET", "/openapi.json", kApi, false, handle_openapi, "this server's OpenAPI document"},
    Route{"GET", "/health", kHealth, false, handle_health, "200 when requests are served"},
    Route{"GET", "/ping", kHealth, false, handle_health, "200 when requests are served"},
    Route{"POST", "/ping", kHealth, false, handle_health, "200 when requests are served"},
    Route{"GET", "/version", kHealth, false, handle_version, "the server's version"},
    Route{"GET", "/metrics", RouteKind::kMetrics, false, handle_metrics, "figures for Prometheus"},
};

}  // namespace

std::span<const Route> all_routes() {
  return kRoutes;
}

}  // namespace kun
