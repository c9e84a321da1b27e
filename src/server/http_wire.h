// How a response looks on the wire.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace kun {

struct HttpWireOptions {
  int minor_version = 1;  // of the request
  bool keep_alive = true;
  bool chunked = false;
  bool with_body = true;  // false answers HEAD
};

// Status line and headers. Without a length the body is chunked, or ends with the connection.
// Header values are cut at the first control character, so that no value can start a new header.
std::string format_head(const HttpResponse& response, std::optional<std::size_t> length,
                        const HttpWireOptions& options);

// Appends `bytes` of the body, framed as `options` say, and the end of it if this is the last.
void append_body(std::string& wire, std::string_view bytes, bool last,
                 const HttpWireOptions& options);

}  // namespace kun
