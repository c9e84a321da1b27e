// Which names and paths of a hub are acceptable. Names
// come from the command line and paths from a server: neither may lead out of the model's folder.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace kun {

// "org/name", of letters, digits and "-_.", neither part starting with a dot.
Status check_model_name(std::string_view name);

// A branch, tag or commit.
Status check_revision(std::string_view revision);

// A relative path without "..", empty parts, backslashes or control characters.
Status check_file_path(std::string_view path);

// Percent-encodes everything but unreserved characters and, if told so, "/".
std::string url_encode(std::string_view text, bool keep_slashes);

}  // namespace kun
