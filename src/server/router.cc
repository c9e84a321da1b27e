#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <random>

#include "base/log.h"
#include "server/api_error.h"
#include "server/openai_request.h"
#include "server/routes.h"
#include "text/utf8.h"

namespace kun {

namespace {

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

std::string join(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

bool is_json(std::string_view content_type) {
  const std::string_view kind = content_type.substr(0, content_type.find(';'));
  std::string word;
  for (const char c : kind) {
    if (c != ' ' && c != '\t')
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return word == "application/json";
}

std::vector<ApiKey> all_keys(const ServerOptions& options) {
  std::vector<ApiKey> keys = unnamed_api_keys(options.api_keys);
  keys.insert(keys.end(), options.tenant_keys.begin(), options.tenant_keys.end());
  return keys;
}

std::string make_request_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

}  // namespace

Router::Router(ServerContext& context) : context_(context), keys_(all_keys(context.options)) {}

std::string_view Router::local_path(const HttpRequest& request) const {
  std::string_view path = request.path;
  const std::string& root = context_.options.root_path;
  if (!root.empty() && path.starts_with(root) &&
      (path.size() == root.size() || path[root.size()] == '/')) {
    path.remove_prefix(root.size());
  }
  return path;
}

const Route* Router::find(std::string_view path, std::string_view method) const {
  if (method == "HEAD") method = "GET";
  for (const Route& route : all_routes()) {
    if (matches(route.path, path) && route.method == method) return &route;
  }
  return nullptr;
}

std::optional<ApiError> Router::refuse_access(const HttpRequest& request,
                                              const Route& route) const {
  PageAccess access = PageAccess::kKey;
  if (route.kind == RouteKind::kHealth) access = context_.options.health_access;
  if (route.kind == RouteKind::kMetrics) access = context_.options.metrics_access;
  if (access == PageAccess::kOff) return ApiError{404, "there is no such page", std::nullopt};
  if (access == PageAccess::kOpen || keys_.empty()) return std::nullopt;
  const std::string_view authorization = request.header("authorization");
  if (keys_.owner(request) != nullptr) return std::nullopt;
  return ApiError{401,
                  authorization.empty() ? "an API key is needed: Authorization: Bearer KEY"
                                        : "the API key is not valid",
                  std::nullopt};
}

std::optional<HttpResponse> Router::refuse_route(const HttpRequest& request) const {
  const std::string_view path = local_path(request);
  const Route* route = find(path, request.method);
  if (route == nullptr) {
    std::string allowed;
    for (const Route& candidate : all_routes()) {
      if (!matches(candidate.path, path)) continue;
      allowed += std::string(candidate.method) + (candidate.method == "GET" ? ", HEAD, " : ", ");
    }
    if (allowed.empty()) {
      const std::string shown = to_valid_utf8(path.substr(0, 200));
      return error_response({404, fmt::format("there is no {}", shown), std::nullopt},
                            request.dialect);
    }
    HttpResponse response = error_response(
        {405, fmt::format("{} is not a method of this path", request.method.substr(0, 32)),
         std::nullopt},
        request.dialect);
    response.headers.push_back({"Allow", allowed + "OPTIONS"});
    return response;
  }
  if (const auto error = refuse_access(request, *route))
    return error_response(*error, request.dialect);
  if (!route->heavy) return std::nullopt;
  const std::string_view type = request.header("content-type");
  if (!type.empty() && !is_json(type)) {
    return error_response({415, "Content-Type must be application/json", std::nullopt},
                          request.dialect);
  }
  const std::string_view encoding = request.header("content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    return error_response({415, "compressed request bodies are not accepted", std::nullopt},
                          request.dialect);
  }
  if (context_.draining) {
    return error_response({503, "the server is shutting down", std::nullopt}, request.dialect);
  }
  return std::nullopt;
}

void Router::begin(HttpRequest& request) {
  constexpr std::size_t kIdBytesMax = 128;
  const std::string_view given = request.header("x-request-id");
  const bool usable = !given.empty() && given.size() <= kIdBytesMax &&
                      std::ranges::all_of(given, [](char c) { return c > 0x20 && c < 0x7f; });
  request.request_id = usable ? std::string(given) : make_request_id();
  request.dialect = dialect_of(local_path(request));
  if (const ApiKeys::Owner* owner = keys_.owner(request)) {
    request.tenant = owner->tenant;
    request.tenant_weight = owner->weight;
  }
}

std::optional<HttpResponse> Router::refuse(const HttpRequest& request) {
  if (request.method == "OPTIONS") return preflight(request);
  return refuse_route(request);
}

void Router::handle(std::shared_ptr<Exchange> exchange) {
  const Route* route = find(local_path(exchange->request()), exchange->request().method);
  if (route == nullptr) return respond_error(exchange, {404, "not found", std::nullopt});
  auto task = [this, route, exchange] {
    try {
      route->handler(context_, exchange);
    } catch (const std::exception& exception) {
      LOG(kError, fmt::format("{} failed: {}", route->path, exception.what()));
      respond_error(exchange, {500, "the server could not answer this request", std::nullopt});
    }
  };
  if (!route->heavy) return context_.pool->resume(std::move(task));
  if (!context_.pool->try_submit(std::move(task), exchange->request().tenant)) {
    ApiError error{429, "too many requests are waiting; try again later", std::nullopt};
    error.code = kCodeQueueFull;
    error.retry_after_seconds = context_.pool->wait_seconds();
    respond_error(exchange, error);
  }
}

HttpResponse Router::malformed(const HttpRequest& request, int status, const std::string& message) {
  context_.metrics.answered("none", "none", status, 0.0);
  return error_response({status, message, std::nullopt}, dialect_of(local_path(request)));
}

HttpResponse Router::preflight(const HttpRequest& request) const {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  if (request.header("origin").empty()) {
    response.headers.push_back({"Allow", "GET, HEAD, POST, DELETE, OPTIONS"});
    return response;
  }
  const CorsOptions& cors = context_.options.cors;
  const bool any_header = std::ranges::count(cors.headers, "*") > 0;
  const bool any_method = std::ranges::count(cors.methods, "*") > 0;
  // "*" does not cover Authorization, so what was asked for is repeated.
  const std::string_view asked = request.header("access-control-request-headers");
  response.headers.push_back(
      {"Access-Control-Allow-Methods",
       any_method ? "GET, HEAD, POST, DELETE, OPTIONS" : join(cors.methods)});
  response.headers.push_back(
      {"Access-Control-Allow-Headers",
       any_header ? std::string(asked.empty() ? "*" : asked) : join(cors.headers)});
  response.headers.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

std::string Router::allowed_origin(std::string_view origin) const {
  const CorsOptions& cors = context_.options.cors;
  const bool any = std::ranges::count(cors.origins, "*") > 0;
  if (any && !cors.allow_credentials) return "*";
  if (any || std::ranges::count(cors.origins, origin) > 0) return std::string(origin);
  return {};
}

void Router::decorate(const HttpRequest& request, HttpResponse& response) {
  const bool named_by_client = !request.header("x-request-id").empty();
  if (named_by_client || context_.options.enable_request_id_headers) {
    response.headers.push_back({"X-Request-Id", request.request_id});
  }
  const std::string_view origin = request.header("origin");
  if (origin.empty()) return;
  const std::string allowed = allowed_origin(origin);
  if (allowed.empty()) return;
  response.headers.push_back({"Access-Control-Allow-Origin", allowed});
  if (allowed != "*") response.headers.push_back({"Vary", "Origin"});
  if (context_.options.cors.allow_credentials) {
    response.headers.push_back({"Access-Control-Allow-Credentials", "true"});
  }
}

void Router::answered(const HttpRequest& request, int status, bool complete) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - request.received).count();
  const Route* route = find(local_path(request), request.method);
  if (route == nullptr) {
    context_.metrics.answered("none", "none", status, seconds);
  } else if (route->kind == RouteKind::kApi) {
    context_.metrics.answered(route->path, route->method, status, seconds);
  }
  if (!context_.options.log_requests) return;
  LOG(kInfo,
      fmt::format("{} {} {} {:.1f} ms, request {}{}", to_valid_utf8(request.method.substr(0, 32)),
                  fmt::format("{:?}", to_valid_utf8(request.path.substr(0, 200))), status,
                  seconds * 1e3, request.request_id, complete ? "" : ", the client has gone"));
}

}  // namespace kun
