#include "text/lark_text.h"

#include <fmt/format.h>

namespace kun {

std::string lark_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': quoted += "\\\""; break;
      case '\\': quoted += "\\\\"; break;
      case '\n': quoted += "\\n"; break;
      case '\r': quoted += "\\r"; break;
      case '\t': quoted += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          quoted += c;
        }
    }
  }
  return quoted + '"';
}

std::string lark_regex(std::string_view pattern) {
  std::string regex = "/";
  bool escaped = false;
  for (const char c : pattern) {
    if (c == '\n') {
      regex += escaped ? "n" : "\\n";
    } else {
      if (c == '/' && !escaped) regex += '\\';
      regex += c;
    }
    escaped = c == '\\' && !escaped;
  }
  return regex + '/';
}

}  // namespace kun
