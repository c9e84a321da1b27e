#include "server/api_error.h"

#include "server/json_writer.h"

namespace kun {
namespace {

std::string_view type_name(int status) {
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
    default: return "BadRequestError";
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

ApiError error_from(const Status& status) {
  return {http_status(status.code()), status.message(), std::nullopt};
}

std::string error_json(const ApiError& error) {
  JsonWriter json;
  json.begin_object().key("error").begin_object();
  json.key("message").string(error.message);
  json.key("type").string(type_name(error.status));
  json.key("param");
  if (error.param) {
    json.string(*error.param);
  } else {
    json.null();
  }
  json.key("code").integer(error.status).end_object().end_object();
  return json.take();
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = error_json(error);
  if (error.status == 429 || error.status == 503) {
    response.headers.push_back({"Retry-After", "1"});
  }
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace kun
