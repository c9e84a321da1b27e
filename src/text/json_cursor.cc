#include "text/json_cursor.h"

#include <algorithm>

namespace kun {
namespace {

bool is_space(char byte) {
  return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

bool is_digit(char byte) {
  return byte >= '0' && byte <= '9';
}

bool is_hex(char byte) {
  return is_digit(byte) || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
}

}  // namespace

JsonCursor::Verdict JsonCursor::feed(char byte) {
  switch (state_) {
    case State::kValue: return is_space(byte) ? Verdict::kMore : begin_value(byte);
    case State::kFirstElement:
      if (is_space(byte)) return Verdict::kMore;
      return byte == ']' ? close('[') : begin_value(byte);
    case State::kFirstKey:
    case State::kKey:
      if (is_space(byte)) return Verdict::kMore;
      if (byte == '}' && state_ == State::kFirstKey) return close('{');
      if (byte != '"') return bad();
      key_ = true;
      return go(State::kString);
    case State::kColon:
      if (is_space(byte)) return Verdict::kMore;
      return byte == ':' ? go(State::kValue) : bad();
    case State::kAfterValue: return is_space(byte) ? Verdict::kMore : after_value(byte);
    case State::kString:
      if (byte == '"') return end_string();
      return byte == '\\' ? go(State::kEscape) : Verdict::kMore;
    case State::kEscape:
      if (byte == 'u') {
        hex_left_ = 4;
        return go(State::kUnicode);
      }
      return std::string_view("\"\\/bfnrt").find(byte) == std::string_view::npos
                 ? bad()
                 : go(State::kString);
    case State::kUnicode:
      if (!is_hex(byte)) return bad();
      return --hex_left_ == 0 ? go(State::kString) : Verdict::kMore;
    case State::kLiteral:
      if (byte != literal_.front()) return bad();
      literal_.remove_prefix(1);
      return literal_.empty() ? end_value() : Verdict::kMore;
    case State::kEnd:
    case State::kBad: return bad();
    default: return in_number(byte);
  }
}

JsonCursor::Verdict JsonCursor::begin_value(char byte) {
  switch (byte) {
    case '{': return open('{', State::kFirstKey);
    case '[': return open('[', State::kFirstElement);
    case '"': key_ = false; return go(State::kString);
    case 't': literal_ = "rue"; return go(State::kLiteral);
    case 'f': literal_ = "alse"; return go(State::kLiteral);
    case 'n': literal_ = "ull"; return go(State::kLiteral);
    case '-': return go(State::kMinus);
    case '0': return go(State::kZero);
    default: return is_digit(byte) ? go(State::kInteger) : bad();
  }
}

JsonCursor::Verdict JsonCursor::after_value(char byte) {
  const bool in_object = brackets_.back() == '{';
  if (byte == ',') return go(in_object ? State::kKey : State::kValue);
  if (byte == '}') return close('{');
  return byte == ']' ? close('[') : bad();
}

// The grammar of RFC 8259: -?(0|[1-9][0-9]*)(.[0-9]+)?([eE][+-]?[0-9]+)?
JsonCursor::Verdict JsonCursor::in_number(char byte) {
  switch (state_) {
    case State::kMinus:
      if (byte == '0') return go(State::kZero);
      return is_digit(byte) ? go(State::kInteger) : bad();
    case State::kInteger:
      if (is_digit(byte)) return Verdict::kMore;
      [[fallthrough]];
    case State::kZero:
      if (byte == '.') return go(State::kPoint);
      return byte == 'e' || byte == 'E' ? go(State::kExponent) : end_number(byte);
    case State::kPoint: return is_digit(byte) ? go(State::kFraction) : bad();
    case State::kFraction:
      if (is_digit(byte)) return Verdict::kMore;
      return byte == 'e' || byte == 'E' ? go(State::kExponent) : end_number(byte);
    case State::kExponent:
      if (byte == '+' || byte == '-') return go(State::kExponentSign);
      [[fallthrough]];
    case State::kExponentSign: return is_digit(byte) ? go(State::kExponentDigits) : bad();
    case State::kExponentDigits: return is_digit(byte) ? Verdict::kMore : end_number(byte);
    default: return bad();
  }
}

JsonCursor::Verdict JsonCursor::end_number(char byte) {
  if (end_value() == Verdict::kDone) return Verdict::kDoneBefore;
  return feed(byte);
}

JsonCursor::Verdict JsonCursor::end_string() {
  return key_ ? go(State::kColon) : end_value();
}

JsonCursor::Verdict JsonCursor::end_value() {
  if (!brackets_.empty()) return go(State::kAfterValue);
  state_ = State::kEnd;
  return Verdict::kDone;
}

JsonCursor::Verdict JsonCursor::open(char bracket, State state) {
  if (brackets_.size() >= kDepthMax) return bad();
  brackets_ += bracket;
  return go(state);
}

JsonCursor::Verdict JsonCursor::close(char bracket) {
  if (brackets_.back() != bracket) return bad();
  brackets_.pop_back();
  return end_value();
}

bool JsonCursor::ends_here() const {
  const bool number = state_ == State::kZero || state_ == State::kInteger ||
                      state_ == State::kFraction || state_ == State::kExponentDigits;
  return state_ == State::kEnd || (number && brackets_.empty());
}

bool is_json_value(std::string_view text) {
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  JsonCursor cursor;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (cursor.in_string() && static_cast<unsigned char>(text[i]) < 0x20) return false;
    const JsonCursor::Verdict verdict = cursor.feed(text[i]);
    if (verdict == JsonCursor::Verdict::kDone) return i + 1 == text.size();
    if (verdict != JsonCursor::Verdict::kMore) return false;
  }
  return cursor.ends_here();
}

void append_json_escaped(std::string& json, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '"': json += "\\\""; break;
      case '\\': json += "\\\\"; break;
      case '\n': json += "\\n"; break;
      case '\r': json += "\\r"; break;
      case '\t': json += "\\t"; break;
      default:
        if (byte >= 0x20) {
          json += c;
          break;
        }
        json += "\\u00";
        json += kHex[byte >> 4U];
        json += kHex[byte & 15U];
    }
  }
}

}  // namespace kun
