// From a request to the code that answers it: the table of routes, who may use them, and the
// headers that every answer carries.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/auth.h"
#include "server/http_listener.h"
#include "server/server_context.h"

namespace kun {

struct Route;

class Router : public HttpHandler {
 public:
  // `context` must outlive the router.
  explicit Router(ServerContext& context);

  void begin(HttpRequest& request) override;
  std::optional<HttpResponse> refuse(const HttpRequest& request) override;
  void handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse malformed(const HttpRequest& request, int status,
                         const std::string& message) override;
  void decorate(const HttpRequest& request, HttpResponse& response) override;
  void answered(const HttpRequest& request, int status, bool complete) override;

 private:
  std::string_view local_path(const HttpRequest& request) const;
  const Route* find(std::string_view path, std::string_view method) const;
  std::optional<ApiError> refuse_access(const HttpRequest& request, const Route& route) const;
  std::optional<HttpResponse> refuse_route(const HttpRequest& request) const;
  HttpResponse preflight(const HttpRequest& request) const;
  std::string allowed_origin(std::string_view origin) const;

  ServerContext& context_;
  const ApiKeys keys_;
};

}  // namespace kun
