// What a client is told when something is wrong, in the shape that its dialect has for it.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "server/http_message.h"

namespace kun {

struct ApiError {
  int status = 400;
  std::string message;
  std::optional<std::string> param;  // the request field at fault
  // The request is of a wrong form, not a field out of range: DeepSeek tells 400 from 422.
  bool malformed = false;
};

inline ApiError bad_field(std::string param, std::string message) {
  return {400, std::move(message), std::move(param)};
}

ApiError error_from(const Status& status);

// {"error":{"message","type","param","code"}}, or Anthropic's {"type","error":{"type","message"}}.
std::string error_json(const ApiError& error, Dialect dialect);

// With Retry-After where trying again makes sense (429, 503).
HttpResponse error_response(const ApiError& error, Dialect dialect);

}  // namespace kun
