// Reads the fields of a request's JSON object into native values, once. The first thing that is
// wrong is kept, with the name of the field, and everything read afterwards is absent: a parser
// reads field after field and looks at error() at the end. `null` means absent.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "server/api_error.h"
#include "server/json_view.h"

namespace kun {

// What a reader has asked for: /openapi.json is made of it, so that it says what the code does.
struct FieldNote {
  enum class Use : std::uint8_t { kRead, kRefused, kIgnored };

  std::string name;
  std::string type;  // of JSON Schema; empty: any
  std::optional<double> min;
  std::optional<double> max;
  Use use = Use::kRead;
};

class FieldReader {
 public:
  // With `notes` every question is written down, once.
  explicit FieldReader(JsonView object, std::string prefix = "",
                       std::vector<FieldNote>* notes = nullptr);

  // Bounds are inclusive. 16.0 is an integer; true, "16" and 16.5 are not.
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t min, std::int64_t max);
  std::optional<double> number(std::string_view name, double min, double max);
  // As number(), but `min` itself is out of range.
  std::optional<double> number_above(std::string_view name, double min, double max);
  std::optional<bool> boolean(std::string_view name);
  std::optional<std::string_view> string(std::string_view name, std::size_t bytes_max);
  std::optional<JsonView> array(std::string_view name, std::size_t size_max);
  std::optional<JsonView> object(std::string_view name);
  // One of `values`.
  std::optional<std::string_view> word(std::string_view name,
                                       std::initializer_list<std::string_view> values);
  std::optional<JsonView> any(std::string_view name);

  // An array of token ids in [0, vocabulary_size).
  std::vector<Token> tokens(std::string_view name, std::size_t size_max, int vocabulary_size);

  // Fields we know and cannot honour: an error unless they are absent, null, false, 0 or empty.
  void refuse(std::initializer_list<std::string_view> names);
  // Fields that may be there and make no difference: hints, and names for what is so anyway.
  void ignore(std::initializer_list<std::string_view> names);

  void fail(std::string_view name, std::string message);
  void fail(ApiError error);
  bool failed() const { return error_.has_value(); }
  const std::optional<ApiError>& error() const { return error_; }

  // Members that nobody has asked for.
  std::vector<std::string_view> unknown() const;

 private:
  void note(FieldNote note);
  std::optional<JsonView> take(std::string_view name);
  std::optional<JsonView> take(std::string_view name, JsonView::Kind kind, std::string_view what);
  std::optional<double> number_in(std::string_view name, double min, double max, bool open);

  JsonView object_;
  std::string prefix_;  // "stream_options." inside it
  std::vector<FieldNote>* notes_;
  std::vector<bool> known_;
  std::optional<ApiError> error_;
};

// The integer a value stands for, if it does.
std::optional<std::int64_t> as_integer(JsonView value);

}  // namespace kun
