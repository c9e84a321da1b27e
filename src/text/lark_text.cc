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

bool ends_in_escape(std::string_view pattern) {
  const std::size_t last = pattern.find_last_not_of('\\');
  const std::size_t text = last == std::string_view::npos ? 0 : last + 1;
  return (pattern.size() - text) % 2 == 1;
}

Result<GrammarSource> grammar_of_choices(const std::vector<std::string>& choices) {
  if (choices.empty()) return invalid_argument("there is nothing to choose from");
  if (choices.size() > kGrammarChoicesMax) {
    return invalid_argument(fmt::format("there are more than {} choices", kGrammarChoicesMax));
  }
  GrammarSource source;
  source.kind = GrammarKind::kLark;
  source.text = "start: ";
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) return invalid_argument("a choice must not be empty");
    if (i > 0) source.text += " | ";
    source.text += lark_string(choices[i]);
  }
  return source;
}

}  // namespace kun
