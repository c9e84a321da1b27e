// The table of routes: who may use them, which code answers them, and what they read.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "server/request_json.h"
#include "server/server_context.h"

namespace kun {

enum class RouteKind : std::uint8_t { kApi, kHealth, kMetrics };

// Has a route's own reader read an empty request, so that it writes down what it asks for.
using RouteFields = void (*)(FieldReader& reader, const ServerContext& context,
                             const ServedModel& model);

struct Route {
  std::string_view method;
  std::string_view path;  // a trailing '*' stands for one or more characters
  RouteKind kind;
  bool heavy;  // waits in the text pool's line and may be refused when it is full
  RouteHandler handler;
  std::string_view summary;
  RouteFields fields = nullptr;  // null: it has no body
};

std::span<const Route> all_routes();

}  // namespace kun
