// One file from a URL to the disk: resumed, verified, and only then under its final name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/status.h"
#include "hub/hub.h"

namespace kun {

struct Download {
  std::string url;
  std::string token;
  HubFile file;
  std::filesystem::path target;  // its folder exists; bytes gather in `target` + ".partial"
};

// Bytes of this file that are here so far; false cancels.
using DownloadProgress = std::function<bool(std::uint64_t bytes)>;

// The number of bytes that came over the network. Attempts that bring bytes do not count against
// options.attempts_max.
Result<std::uint64_t> download_file(const Download& download, const HubOptions& options,
                                    const DownloadProgress& progress);

// Does the file on disk have the size and digest that `file` asks for? Reads all of it.
bool matches_file(const std::filesystem::path& path, const HubFile& file);

}  // namespace kun
