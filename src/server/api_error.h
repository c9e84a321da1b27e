// What a client is told when something is wrong, in the shape that its dialect has for it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/memory_ledger.h"
#include "base/status.h"
#include "plan/refusal.h"
#include "server/http_message.h"

namespace kun {

struct ApiError {
  int status = 400;
  std::string message;
  std::optional<std::string> param;  // the request field at fault
  // The request is of a wrong form, not a field out of range: DeepSeek tells 400 from 422.
  bool malformed = false;
  std::string_view code = {};        // a word that never changes; empty: the status is the code
  double retry_after_seconds = 0.0;  // 0: not known
};

inline ApiError bad_field(std::string param, std::string message) {
  return {400, std::move(message), std::move(param)};
}

ApiError error_from(const Status& status, const Refusal& refusal = {});

// There is no memory for a request that needs `bytes`: now, or ever.
ApiError memory_error(const MemoryLedger& memory, std::size_t bytes);

// {"error":{"message","type","param","code"}}, or Anthropic's {"type","error":{"type","message"}}.
std::string error_json(const ApiError& error, Dialect dialect);

// Where trying again makes sense (429, 503) with Retry-After, in whole seconds, and retry-after-ms,
// which OpenAI's clients prefer.
HttpResponse error_response(const ApiError& error, Dialect dialect);

}  // namespace kun
