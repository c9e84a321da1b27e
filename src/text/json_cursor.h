// Walks through one JSON value byte by byte, as it arrives, and says where it ends or that it is
// none. Nothing is stored but the open brackets, so a value may be of any length: models write tool
// arguments this way, and whoever streams them must know the end without seeing the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kun {

// Not thread-safe.
class JsonCursor {
 public:
  enum class Verdict : std::uint8_t {
    kMore,        // the byte belongs to the value, which is not over
    kDone,        // the byte was the value's last
    kDoneBefore,  // the value (a number) had ended; the byte is what follows
    kBad,         // no JSON value goes on like this
  };

  static constexpr std::size_t kDepthMax = 64;

  // White space before the value is kMore. Control characters inside strings are let through, since
  // models write them: see in_string().
  Verdict feed(char byte);

  // Inside a string, where a control character has to be escaped by whoever copies it.
  bool in_string() const { return state_ == State::kString; }

  // The input ends here: true when what has been fed is a whole value (a number needs no end mark).
  bool ends_here() const;

 private:
  enum class State : std::uint8_t {
    kValue,
    kFirstElement,  // after '[': a value or ']'
    kFirstKey,      // after '{': a key or '}'
    kKey,           // after ',' in an object
    kColon,
    kAfterValue,
    kString,
    kEscape,
    kUnicode,
    kLiteral,
    kMinus,
    kZero,
    kInteger,
    kPoint,
    kFraction,
    kExponent,
    kExponentSign,
    kExponentDigits,
    kEnd,
    kBad,
  };

  Verdict begin_value(char byte);
  Verdict after_value(char byte);
  Verdict in_number(char byte);
  Verdict end_number(char byte);
  Verdict end_string();
  Verdict end_value();
  Verdict open(char bracket, State state);
  Verdict close(char bracket);
  Verdict go(State state) {
    state_ = state;
    return Verdict::kMore;
  }
  Verdict bad() {
    state_ = State::kBad;
    return Verdict::kBad;
  }

  State state_ = State::kValue;
  std::string brackets_;
  std::string_view literal_;  // what is left of true, false, null
  int hex_left_ = 0;
  bool key_ = false;  // the string is a key
};

// True when `text`, white space around it aside, is one JSON value.
bool is_json_value(std::string_view text);

// Appends `text` as the inside of a JSON string.
void append_json_escaped(std::string& json, std::string_view text);

}  // namespace kun
