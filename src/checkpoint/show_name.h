// How a name that came out of a file is printed. The file may be hostile: its names can be as long
// as the file, and hold newlines or terminal escapes that do not belong in a log.
#pragma once

#include <string>
#include <string_view>

namespace kun {

// 'name', cut to 80 bytes, with everything but printable ASCII as \xNN.
std::string show_name(std::string_view name);

}  // namespace kun
