// The one HTTP client of the program: requests with redirects, ranges and limits. libcurl stays in
// the .cc file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kun {

struct HttpFetch {
  std::string url;
  std::string token;             // sent to the url's own host only; empty: none
  std::uint64_t first_byte = 0;  // > 0 asks for the rest from there
  std::string json_body{};       // not empty: POST it
  double connect_seconds = 20.0;
  double stall_seconds = 60.0;
};

// The final answer, after redirects.
struct HttpReply {
  int status = 0;
  std::uint64_t first_byte = 0;  // of a 206, from Content-Range
  std::string next_url;          // of a Link header with rel="next"
  std::string server_message;    // X-Error-Message, cut to a line
};

// Takes the body of a 200 or 206, piece by piece; other bodies are dropped. An error ends the
// transfer and becomes its result.
using HttpSink = std::function<Status(const HttpReply& reply, std::string_view piece)>;

// Any status the server answered with is a success here. kUnavailable: the connection failed or
// broke off; trying again may help.
Result<HttpReply> http_fetch(const HttpFetch& request, const HttpSink& sink);

}  // namespace kun
