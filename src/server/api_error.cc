#include "server/api_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/json_writer.h"

namespace kun {
namespace {

std::string_view openai_type(int status) {
  switch (status) {
    case 401: return "AuthenticationError";
    case 403: return "PermissionDeniedError";
    case 404: return "NotFoundError";
    case 405: return "MethodNotAllowedError";
    case 408: return "RequestTimeoutError";
    case 413: return "RequestTooLargeError";
    case 415: return "UnsupportedMediaTypeError";
    case 429: return "RateLimitError";
    case 500: return "InternalServerError";
    case 501: return "NotImplementedError";
    case 503: return "ServiceUnavailableError";
    case 504: return "TimeoutError";
    default: return "BadRequestError";
  }
}

std::string_view deepseek_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    case 500:
    case 504: return "server_error";
    case 503: return "service_unavailable_error";
    default: return "invalid_request_error";
  }
}

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 500: return "api_error";
    case 503: return "overloaded_error";
    case 504: return "timeout_error";
    default: return "invalid_request_error";
  }
}

// DeepSeek tells fields out of range from requests that cannot be read.
int status_of(const ApiError& error, Dialect dialect) {
  const bool field = error.status == 400 && error.param && !error.malformed;
  return dialect == Dialect::kDeepSeek && field ? 422 : error.status;
}

void write_optional(JsonWriter& json, const std::optional<std::string>& text) {
  if (text) {
    json.string(*text);
  } else {
    json.null();
  }
}

int http_status(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return 200;
    case StatusCode::kInvalidArgument: return 400;
    case StatusCode::kNotFound: return 404;
    case StatusCode::kResourceExhausted: return 429;
    case StatusCode::kUnavailable: return 503;
    case StatusCode::kUnimplemented: return 501;
    case StatusCode::kCancelled: return 503;
    case StatusCode::kDataLoss: return 500;
    case StatusCode::kInternal: return 500;
  }
  return 500;
}

}  // namespace

ApiError error_from(const Status& status, const Refusal& refusal) {
  ApiError error{http_status(status.code()), status.message(), std::nullopt};
  error.code = refusal.code;
  error.retry_after_seconds = static_cast<double>(refusal.retry_after) * 1e-6;
  if (refusal.code == kCodeTimeout) error.status = 504;
  return error;
}

ApiError memory_error(const MemoryLedger& memory, std::size_t bytes) {
  ApiError error{503, "the server has no memory for this request right now; try again later",
                 std::nullopt};
  if (memory.never(bytes)) {
    error = {413,
             fmt::format("this request may need {} MiB, more than the server has for all requests; "
                         "ask for fewer choices, log probabilities, inputs or tokens",
                         bytes >> 20U),
             std::nullopt};
  }
  error.code = kCodeMemoryExhausted;
  return error;
}

std::string error_json(const ApiError& error, Dialect dialect) {
  JsonWriter json;
  json.begin_object();
  if (dialect == Dialect::kAnthropic) {
    json.key("type").string("error").key("error").begin_object();
    json.key("type").string(anthropic_type(error.status));
    json.key("message").string(error.message).end_object().end_object();
    return json.take();
  }
  json.key("error").begin_object();
  json.key("message").string(error.message);
  const bool deepseek = dialect == Dialect::kDeepSeek;
  json.key("type").string(deepseek ? deepseek_type(error.status) : openai_type(error.status));
  json.key("param");
  write_optional(json, error.param);
  json.key("code");
  if (deepseek) {
    json.string(error.status < 500 ? "invalid_request_error" : "internal_error");
  } else if (!error.code.empty()) {
    json.string(error.code);
  } else {
    json.integer(error.status);
  }
  json.end_object().end_object();
  return json.take();
}

HttpResponse error_response(const ApiError& error, Dialect dialect) {
  HttpResponse response;
  response.status = status_of(error, dialect);
  response.body = error_json(error, dialect);
  if (error.status == 429 || error.status == 503) {
    const double seconds = std::clamp(error.retry_after_seconds, 0.0, 86'400.0);
    response.headers.push_back(
        {"Retry-After", fmt::format("{:.0f}", std::max(1.0, std::ceil(seconds)))});
    if (seconds > 0.0) {
      response.headers.push_back(
          {"retry-after-ms", fmt::format("{:.0f}", std::ceil(seconds * 1e3))});
    }
  }
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace kun
