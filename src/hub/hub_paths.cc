// Checks and encodings of the names and paths of a hub, by allow-lists wherever the hub's own rules
// permit one.
#include "hub/hub_paths.h"

#include <fmt/format.h>

namespace kun {
namespace {

constexpr std::size_t kNamePartBytesMax = 96;   // the hub's own limit
constexpr std::size_t kPathPartBytesMax = 200;  // leaves room for suffixes within NAME_MAX
constexpr std::size_t kPathBytesMax = 1024;
constexpr std::size_t kRevisionBytesMax = 255;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}

bool is_name_part(std::string_view part) {
  if (part.empty() || part.size() > kNamePartBytesMax || part.front() == '.') return false;
  if (part.find("..") != std::string_view::npos) return false;
  for (const char c : part) {
    if (!is_word(c)) return false;
  }
  return true;
}

bool is_path_part(std::string_view part) {
  if (part.empty() || part.size() > kPathPartBytesMax || part == "." || part == "..") return false;
  for (const char c : part) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\\') return false;
  }
  return true;
}

}  // namespace

Status check_model_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash != std::string_view::npos && is_name_part(name.substr(0, slash)) &&
      is_name_part(name.substr(slash + 1))) {
    return {};
  }
  return invalid_argument(
      fmt::format("'{:.200}' is no model name: it takes the form org/name, of letters, digits, "
                  "'-', '_' and '.'",
                  name));
}

Status check_revision(std::string_view revision) {
  bool good = !revision.empty() && revision.size() <= kRevisionBytesMax;
  good = good && revision.find("..") == std::string_view::npos;
  for (const char c : revision) good = good && (is_word(c) || c == '/');
  if (good) return {};
  return invalid_argument(
      fmt::format("'{:.200}' is no revision: give a branch, tag or commit", revision));
}

Status check_file_path(std::string_view path) {
  bool good = path.size() <= kPathBytesMax;
  for (std::size_t start = 0; good;) {
    const std::size_t slash = path.find('/', start);
    good = is_path_part(path.substr(start, slash - start));
    if (slash == std::string_view::npos) break;
    start = slash + 1;
  }
  if (good) return {};
  return data_loss(fmt::format("the hub lists a file with an unacceptable path, '{:.200}'", path));
}

std::string url_encode(std::string_view text, bool keep_slashes) {
  std::string encoded;
  for (const char c : text) {
    if (is_word(c) || c == '~' || (keep_slashes && c == '/')) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace kun
