#include "text/python_json.h"

#include <simdjson.h>

#include <array>
#include <charconv>
#include <utility>

namespace kun {
namespace {

void append_python_json(std::string& text, simdjson::dom::element value);

void append_string(std::string& text, std::string_view value) {
  constexpr std::string_view kHex = "0123456789abcdef";
  text += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"': text += "\\\""; break;
      case '\\': text += "\\\\"; break;
      case '\n': text += "\\n"; break;
      case '\r': text += "\\r"; break;
      case '\t': text += "\\t"; break;
      case '\b': text += "\\b"; break;
      case '\f': text += "\\f"; break;
      default:
        if (byte >= 0x20) {
          text += c;
          break;
        }
        text += "\\u00";
        text += kHex[byte >> 4U];
        text += kHex[byte & 15U];
    }
  }
  text += '"';
}

// Python's repr(): the shortest digits that read back, in positional notation for exponents from -4
// to 15, always with a point or an exponent.
void append_float(std::string& text, double value) {
  std::array<char, 64> digits{};
  const auto scientific = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                        std::chars_format::scientific);
  const std::string_view shown(digits.data(),
                               static_cast<std::size_t>(scientific.ptr - digits.data()));
  int exponent = 0;
  const std::size_t e = shown.find('e');
  const char* from = shown.data() + e + 1 + (shown[e + 1] == '+' ? 1 : 0);
  std::from_chars(from, shown.data() + shown.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    text += shown;
    return;
  }
  std::array<char, 64> positional{};
  const auto fixed = std::to_chars(positional.data(), positional.data() + positional.size(), value,
                                   std::chars_format::fixed);
  const std::string_view plain(positional.data(),
                               static_cast<std::size_t>(fixed.ptr - positional.data()));
  text += plain;
  if (plain.find('.') == std::string_view::npos) text += ".0";
}

void append_array(std::string& text, simdjson::dom::array array) {
  text += '[';
  bool first = true;
  for (const simdjson::dom::element element : array) {
    if (!std::exchange(first, false)) text += ", ";
    append_python_json(text, element);
  }
  text += ']';
}

void append_object(std::string& text, simdjson::dom::object object) {
  text += '{';
  bool first = true;
  for (const simdjson::dom::key_value_pair member : object) {
    if (!std::exchange(first, false)) text += ", ";
    append_string(text, member.key);
    text += ": ";
    append_python_json(text, member.value);
  }
  text += '}';
}

void append_python_json(std::string& text, simdjson::dom::element value) {
  using Type = simdjson::dom::element_type;
  switch (value.type()) {
    case Type::ARRAY: return append_array(text, value.get_array().value_unsafe());
    case Type::OBJECT: return append_object(text, value.get_object().value_unsafe());
    case Type::STRING: return append_string(text, value.get_string().value_unsafe());
    case Type::INT64: text += std::to_string(value.get_int64().value_unsafe()); return;
    case Type::UINT64: text += std::to_string(value.get_uint64().value_unsafe()); return;
    case Type::DOUBLE: return append_float(text, value.get_double().value_unsafe());
    case Type::BOOL: text += value.get_bool().value_unsafe() ? "true" : "false"; return;
    case Type::NULL_VALUE: text += "null"; return;
  }
}

}  // namespace

std::string python_json(std::string_view json) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  std::string text;
  if (parser.parse(json.data(), json.size()).get(root) != simdjson::SUCCESS) return text;
  append_python_json(text, root);
  return text;
}

}  // namespace kun
