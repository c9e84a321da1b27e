// A small JSON reader for the files and traces of these tests, so that they need no library the
// scheduler itself does without. Null, escapes in strings and exponents are not needed and refused.
#pragma once

#include <cctype>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kun {

struct JsonValue {
  std::int64_t number = 0;  // and 0 or 1 for booleans
  std::string text;
  std::vector<JsonValue> items;
  std::map<std::string, JsonValue> members;

  // Of an object; an empty value when there is no such member.
  const JsonValue& operator[](const std::string& name) const {
    static const JsonValue kNone;
    const auto entry = members.find(name);
    return entry == members.end() ? kNone : entry->second;
  }
};

class JsonReader {
 public:
  // Nothing when `text` is not one value of the kinds above.
  static std::optional<JsonValue> read(std::string_view text) {
    JsonReader reader(text);
    JsonValue value;
    if (!reader.value(value, 0)) return std::nullopt;
    reader.skip_space();
    if (!reader.rest_.empty()) return std::nullopt;
    return value;
  }

 private:
  static constexpr int kDepthMax = 16;

  explicit JsonReader(std::string_view text) : rest_(text) {}

  void skip_space() {
    while (!rest_.empty() && std::isspace(static_cast<unsigned char>(rest_[0])) != 0) {
      rest_.remove_prefix(1);
    }
  }

  bool take(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  bool value(JsonValue& out, int depth) {
    if (depth > kDepthMax) return false;
    if (take("{")) return object(out, depth);
    if (take("[")) return array(out, depth);
    if (take("\"")) return string(out.text);
    if (take("true")) return out.number = 1, true;
    if (take("false")) return true;
    return number(out.number);
  }

  bool object(JsonValue& out, int depth) {
    if (take("}")) return true;
    do {
      std::string name;
      if (!take("\"") || !string(name) || !take(":")) return false;
      if (!value(out.members[name], depth + 1)) return false;
    } while (take(","));
    return take("}");
  }

  bool array(JsonValue& out, int depth) {
    if (take("]")) return true;
    do {
      if (!value(out.items.emplace_back(), depth + 1)) return false;
    } while (take(","));
    return take("]");
  }

  bool string(std::string& out) {
    const std::size_t end = rest_.find_first_of("\"\\");
    if (end == std::string_view::npos || rest_[end] == '\\') return false;
    out = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return true;
  }

  bool number(std::int64_t& out) {
    const bool negative = take("-");
    std::size_t count = 0;
    for (; count < rest_.size() && count < 18 && rest_[count] >= '0' && rest_[count] <= '9';) {
      out = out * 10 + (rest_[count++] - '0');
    }
    rest_.remove_prefix(count);
    if (negative) out = -out;
    return count > 0;
  }

  std::string_view rest_;
};

}  // namespace kun
