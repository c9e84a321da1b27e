// Strings in JSON, for commands that print one object and need no more of JSON than that.
#pragma once

#include <string>
#include <string_view>

namespace kun {

// `text` as a JSON string, quotes included. Requires: valid UTF-8.
std::string json_quoted(std::string_view text);

}  // namespace kun
