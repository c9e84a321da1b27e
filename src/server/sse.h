// Server-sent events, as OpenAI's streams use them.
#pragma once

#include <string>
#include <string_view>

#include "server/http_message.h"

namespace kun {

constexpr std::string_view kSseDone = "data: [DONE]\n\n";
constexpr std::string_view kSseComment = ": keep-alive\n\n";  // clients ignore it

// Requires: `json` has no line ends, which JSON text from JsonWriter never has.
inline std::string sse_event(std::string_view json) {
  std::string event;
  event.reserve(json.size() + 8);
  event += "data: ";
  event += json;
  event += "\n\n";
  return event;
}

// The same with a name, as OpenAI's Responses and Anthropic's Messages have them.
inline std::string sse_event(std::string_view name, std::string_view json) {
  std::string event = "event: ";
  event += name;
  event += '\n';
  event += sse_event(json);
  return event;
}

// Proxies must neither keep nor collect the events.
inline HttpResponse sse_head() {
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return head;
}

}  // namespace kun
