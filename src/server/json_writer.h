// Writes JSON text. Commas are its own business; strings are escaped and repaired to valid UTF-8;
// floats are the shortest text that reads back as the same value, and values JSON has no word for
// become null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace kun {

class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);  // the next call writes its value
  JsonWriter& string(std::string_view text);
  JsonWriter& integer(std::int64_t value);
  JsonWriter& number(float value);
  JsonWriter& number(double value);
  JsonWriter& boolean(bool value);
  JsonWriter& null();
  JsonWriter& raw(std::string_view json);  // requires: valid JSON

  const std::string& text() const { return text_; }
  std::string take() { return std::exchange(text_, {}); }

 private:
  void separate();
  template <class Float>
  JsonWriter& write_float(Float value);

  std::string text_;
  bool comma_ = false;  // a value precedes on this level
};

}  // namespace kun
