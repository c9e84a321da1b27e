#include "server/http_wire.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace kun {
namespace {

std::string_view before_control(std::string_view value) {
  const auto bad = std::find_if(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return value.substr(0, static_cast<std::size_t>(bad - value.begin()));
}

}  // namespace

std::string format_head(const HttpResponse& response, std::optional<std::size_t> length,
                        const HttpWireOptions& options) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nServer: kun\r\n", response.status,
                                 reason_phrase(response.status));
  head += fmt::format("Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(std::time(nullptr)));
  if (!response.content_type.empty()) {
    head += fmt::format("Content-Type: {}\r\n", response.content_type);
  }
  for (const HttpHeader& header : response.headers) {
    head += fmt::format("{}: {}\r\n", header.name, before_control(header.value));
  }
  if (length) {
    if (response.status != 204) head += fmt::format("Content-Length: {}\r\n", *length);
  } else if (options.chunked) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  if (!options.keep_alive) {
    head += "Connection: close\r\n";
  } else if (options.minor_version == 0) {
    head += "Connection: keep-alive\r\n";
  }
  head += "\r\n";
  return head;
}

void append_body(std::string& wire, std::string_view bytes, bool last,
                 const HttpWireOptions& options) {
  if (!options.chunked) {
    wire += bytes;
    return;
  }
  // A chunk of length 0 would end the body.
  if (!bytes.empty()) wire += fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
  if (last) wire += "0\r\n\r\n";
}

}  // namespace kun
