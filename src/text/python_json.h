// JSON as Python's json.dumps(value, ensure_ascii=False) writes it: ", " and ": " between, floats
// by repr(). Models were trained on that spelling, so prompts must have it to the byte.
#pragma once

#include <string>
#include <string_view>

namespace kun {

// Empty when `json` is not JSON.
std::string python_json(std::string_view json);

}  // namespace kun
