// Requests and responses as plain data, so that everything behind the connection can be written
// and tested without a socket.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "server/dialect.h"

namespace kun {

struct HttpHeader {
  std::string name;  // lower case in requests
  std::string value;
};

struct HttpRequest {
  std::string method;
  std::string path;  // of the target, still percent-encoded, without query
  std::string query;
  int minor_version = 1;  // HTTP/1.x
  std::vector<HttpHeader> headers;
  std::string body;
  std::string request_id;  // the client's X-Request-Id, or one made here
  bool keep_alive = true;
  Dialect dialect = Dialect::kOpenAi;
  std::string tenant;  // whose key it carries; empty: keys are not asked for
  double tenant_weight = 1.0;
  std::chrono::steady_clock::time_point received;

  // The first header of that (lower case) name; empty when there is none.
  std::string_view header(std::string_view name) const {
    for (const HttpHeader& header : headers) {
      if (header.name == name) return header.value;
    }
    return {};
  }
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
  std::string body;
};

// "Not Found" for 404.
std::string_view reason_phrase(int status);

// %41 becomes A; a broken escape stays as it is.
std::string percent_decode(std::string_view text);

}  // namespace kun
