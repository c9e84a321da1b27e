// Where Kun keeps what it fetched and made: models, caches.
#pragma once

#include <filesystem>

namespace kun {

// $KUN_HOME, or ~/.cache/kun.
std::filesystem::path kun_home();

}  // namespace kun
