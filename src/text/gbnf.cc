// A recursive descent over llama.cpp's grammar of grammars (grammars/README.md there): rules are
// names, literals, character classes, groups and repetitions, which Lark has as well in its own
// spelling. Rules are renamed r0, r1, ... because Lark tells terminals by their capital letters.
#include "text/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "text/lark_text.h"

namespace kun {
namespace {

constexpr int kDepthMax = 64;
constexpr std::string_view kDefines = "::=";

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

class Translator {
 public:
  explicit Translator(std::string_view text) : text_(text) {}

  Result<GrammarSource> translate() {
    skip_space();
    while (at_ < text_.size()) {
      const std::string_view name = read_name();
      skip_space();
      if (name.empty() || !take(kDefines)) return failure("a rule (name ::= ...) was expected");
      Rule& rule = rule_of(name);
      if (rule.defined) return failure(fmt::format("the rule {} is defined twice", name));
      rule.defined = true;
      const int index = rule.index;
      std::string body;
      RETURN_IF_ERROR(alternatives(body, 0));
      lark_ += fmt::format("r{}: {}\n", index, body);
      skip_space();
    }
    for (const auto& [name, rule] : rules_) {
      if (rule.defined) continue;
      return invalid_argument(
          fmt::format("the grammar uses the rule {:.64}, which it does not define", name));
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return invalid_argument("the grammar has no rule named root");
    GrammarSource source;
    source.kind = GrammarKind::kLark;
    source.text = fmt::format("start: r{}\n{}", root->second.index, lark_);
    return source;
  }

 private:
  struct Rule {
    int index = 0;
    bool defined = false;
  };

  Status failure(std::string_view what) const {
    const auto line = 1 + std::ranges::count(text_.substr(0, at_), '\n');
    return invalid_argument(fmt::format("line {} of the grammar: {}", line, what));
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        ++at_;
      } else {
        return;
      }
    }
  }

  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  std::string_view read_name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_name_byte(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  Rule& rule_of(std::string_view name) {
    const auto index = static_cast<int>(rules_.size());
    return rules_.try_emplace(std::string(name), Rule{index, false}).first->second;
  }

  // Whether a name here begins the next rule.
  bool at_definition() {
    const std::size_t begin = at_;
    const bool named = !read_name().empty();
    skip_space();
    const bool defines = named && text_.substr(at_).starts_with(kDefines);
    at_ = begin;
    return defines;
  }

  Status alternatives(std::string& out, int depth) {
    if (depth > kDepthMax) return failure("groups are nested too deeply");
    while (true) {
      bool empty = true;
      while (true) {
        skip_space();
        if (at_ == text_.size() || text_[at_] == '|' || text_[at_] == ')' || at_definition()) break;
        if (!empty) out += ' ';
        empty = false;
        RETURN_IF_ERROR(item(out, depth));
      }
      if (empty) out += "\"\"";
      if (!take("|")) return {};
      out += " | ";
    }
  }

  Status item(std::string& out, int depth) {
    const char c = text_[at_];
    if (c == '"') {
      RETURN_IF_ERROR(literal(out));
    } else if (c == '[') {
      RETURN_IF_ERROR(char_class(out));
    } else if (take(".")) {
      out += "/(?s:.)/";
    } else if (take("(")) {
      out += '(';
      RETURN_IF_ERROR(alternatives(out, depth + 1));
      if (!take(")")) return failure("a group is not closed");
      out += ')';
    } else if (is_name_byte(c)) {
      out += fmt::format("r{}", rule_of(read_name()).index);
    } else {
      return failure("an item of a rule was expected");
    }
    return repetition(out);
  }

  Status repetition(std::string& out) {
    if (at_ < text_.size() && std::string_view("*+?").find(text_[at_]) != std::string_view::npos) {
      out += text_[at_++];
      return {};
    }
    if (!take("{")) return {};
    const std::size_t end = text_.find('}', at_);
    if (end == std::string_view::npos || end - at_ > 16)
      return failure("a repetition is not closed");
    const std::string_view counts = text_.substr(at_, end - at_);
    if (counts.find_first_not_of("0123456789, ") != std::string_view::npos) {
      return failure("a repetition is {n}, {n,} or {n,m}");
    }
    out += fmt::format("{{{}}}", counts);
    at_ = end + 1;
    return {};
  }

  // One character of a literal or class, escapes resolved.
  std::optional<std::string> character() {
    if (at_ == text_.size()) return std::nullopt;
    if (text_[at_] != '\\') return std::string(1, text_[at_++]);
    if (++at_ == text_.size()) return std::nullopt;
    const char c = text_[at_++];
    switch (c) {
      case 'n': return "\n";
      case 'r': return "\r";
      case 't': return "\t";
      case 'x': return code_point(2);
      case 'u': return code_point(4);
      case 'U': return code_point(8);
      default: return std::string(1, c);
    }
  }

  std::optional<std::string> code_point(std::size_t digit_count) {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < digit_count; ++i) {
      const std::size_t digit =
          at_ < text_.size() ? kHex.find(text_[at_++]) : std::string_view::npos;
      if (digit == std::string_view::npos) return std::nullopt;
      value = value * 16 + static_cast<std::uint32_t>(digit < 16 ? digit : digit - 6);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return std::nullopt;
    return to_utf8(value);
  }

  static std::string to_utf8(std::uint32_t c) {
    std::string bytes;
    const auto tail = [&bytes, c](unsigned shift) {
      bytes += static_cast<char>(0x80U | ((c >> shift) & 0x3FU));
    };
    if (c < 0x80) {
      bytes += static_cast<char>(c);
    } else if (c < 0x800) {
      bytes += static_cast<char>(0xC0U | (c >> 6U));
      tail(0);
    } else if (c < 0x10000) {
      bytes += static_cast<char>(0xE0U | (c >> 12U));
      tail(6);
      tail(0);
    } else {
      bytes += static_cast<char>(0xF0U | (c >> 18U));
      tail(12);
      tail(6);
      tail(0);
    }
    return bytes;
  }

  Status literal(std::string& out) {
    ++at_;
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      const auto c = character();
      if (!c) return failure("an escape cannot be read");
      value += *c;
    }
    if (!take("\"")) return failure("a string is not closed");
    out += lark_string(value);
    return {};
  }

  Status char_class(std::string& out) {
    ++at_;
    std::string value = "[";
    if (take("^")) value += '^';
    while (at_ < text_.size() && text_[at_] != ']') {
      const bool range = text_[at_] == '-';
      const auto c = character();
      if (!c) return failure("an escape cannot be read");
      if (range && value.size() > 1 && at_ < text_.size() && text_[at_] != ']') {
        value += '-';
        continue;
      }
      if (c->size() == 1 && !is_name_byte(c->front()) &&
          static_cast<unsigned char>(c->front()) < 128) {
        value += fmt::format("\\x{:02x}", static_cast<unsigned>(c->front()));
      } else if (*c == "-") {
        value += "\\x2d";
      } else {
        value += *c;
      }
    }
    if (!take("]")) return failure("a character class is not closed");
    if (value.size() == 1) return failure("a character class is empty");
    out += lark_regex(value + ']');
    return {};
  }

  static constexpr std::string_view kHex = "0123456789abcdefABCDEF";

  const std::string_view text_;
  std::size_t at_ = 0;
  std::map<std::string, Rule, std::less<>> rules_;
  std::string lark_;
};

}  // namespace

bool is_gbnf(std::string_view text) {
  return text.find(kDefines) != std::string_view::npos;
}

Result<GrammarSource> gbnf_to_lark(std::string_view text) {
  return Translator(text).translate();
}

}  // namespace kun
