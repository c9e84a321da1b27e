// What every JSON route begins with: is there a model, is the body a JSON object.
#pragma once

#include <memory>
#include <optional>

#include "server/api_error.h"
#include "server/server_context.h"

namespace kun {

struct OpenedRequest {
  std::shared_ptr<const ServedModel> model;
  JsonDocument json;  // its root is an object
};

// Answers 503 or 400 itself when it gives nothing.
std::optional<OpenedRequest> open_request(ServerContext& context,
                                          const std::shared_ptr<Exchange>& exchange);

// Why there is no model now: loading, or going down.
std::optional<ApiError> not_ready(const ServerContext& context);

inline void respond_error(const std::shared_ptr<Exchange>& exchange, const ApiError& error) {
  exchange->respond(error_response(error, exchange->request().dialect));
}

}  // namespace kun
