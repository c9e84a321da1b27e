// A JSON object of arguments on its way from the model to the client: where it ends, and control
// characters inside strings, which models write and JSON forbids, escaped.
#pragma once

#include <string>

#include "text/json_cursor.h"

namespace kun {

// Not thread-safe.
class JsonArguments {
 public:
  // Appends what `byte` becomes to `json`. The verdict is the cursor's.
  JsonCursor::Verdict feed(char byte, std::string& json) {
    const bool escape = cursor_.in_string() && static_cast<unsigned char>(byte) < 0x20;
    const JsonCursor::Verdict verdict = cursor_.feed(byte);
    if (verdict == JsonCursor::Verdict::kBad) return verdict;
    if (escape) {
      append_json_escaped(json, {&byte, 1});
    } else {
      json += byte;
    }
    return verdict;
  }

 private:
  JsonCursor cursor_;
};

}  // namespace kun
