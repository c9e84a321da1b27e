#include "base/kun_home.h"

#include <cstdlib>

namespace kun {

std::filesystem::path kun_home() {
  if (const char* home = std::getenv("KUN_HOME"); home != nullptr && *home != '\0') return home;
  const char* user = std::getenv("HOME");
  return std::filesystem::path(user != nullptr ? user : ".") / ".cache" / "kun";
}

}  // namespace kun
