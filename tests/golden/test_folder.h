// Folders for checkpoints that a test writes. CTest runs each test in a process of its own, several
// at a time, so that a name alone would be shared.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace kun {

// A new, empty folder; it is removed when the process ends.
inline std::filesystem::path test_folder(const std::string& name) {
  struct Root {
    ~Root() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
    const std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("kun_golden_" + std::to_string(::getpid()));
  };
  static const Root root;
  std::filesystem::remove_all(root.path / name);
  std::filesystem::create_directories(root.path / name);
  return root.path / name;
}

}  // namespace kun
