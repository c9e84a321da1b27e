#include "server/openai_request.h"

#include <fmt/format.h>

namespace kun {

std::optional<ApiError> not_ready(const ServerContext& context) {
  if (context.draining) return ApiError{503, "the server is shutting down", std::nullopt};
  if (context.model() != nullptr) return std::nullopt;
  const ServerContext::Loading loading = context.loading();
  return ApiError{503,
                  fmt::format("the model is being loaded: {:.0f}%{}{}", loading.fraction * 100.0,
                              loading.text.empty() ? "" : ", ", loading.text),
                  std::nullopt};
}

std::optional<OpenedRequest> open_request(ServerContext& context,
                                          const std::shared_ptr<Exchange>& exchange) {
  if (const auto error = not_ready(context)) {
    respond_error(exchange, *error);
    return std::nullopt;
  }
  const std::string body = exchange->take_body();
  Result<JsonDocument> json = JsonDocument::parse(body, context.json_limits());
  if (!json) {
    respond_error(exchange, error_from(json.error()));
    return std::nullopt;
  }
  if (!json->root().is(JsonView::Kind::kObject)) {
    respond_error(exchange, {400, "the request body must be a JSON object", std::nullopt});
    return std::nullopt;
  }
  return OpenedRequest{context.model(), *std::move(json)};
}

}  // namespace kun
