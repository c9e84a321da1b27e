// Escapes byte by byte: a name that is not ASCII is rare here and need only be recognisable.
#include "checkpoint/show_name.h"

#include <fmt/format.h>

#include <iterator>

namespace kun {

std::string show_name(std::string_view name) {
  constexpr std::size_t kBytesMax = 80;
  std::string out = "'";
  for (const char c : name.substr(0, kBytesMax)) {
    const bool plain = c >= ' ' && c <= '~' && c != '\'' && c != '\\';
    if (plain) {
      out += c;
    } else {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  out += name.size() > kBytesMax ? "...'" : "'";
  return out;
}

}  // namespace kun
