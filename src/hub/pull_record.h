// What a pull has verified, so that the next one need not read hundreds of gigabytes again to know
// that nothing changed. A text file in the model's folder: "digest bytes path" a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/status.h"
#include "hub/hub.h"

namespace kun {

class PullRecord {
 public:
  // A missing or damaged record is an empty one.
  explicit PullRecord(const std::filesystem::path& folder);

  // Was this very file, by digest and size, verified here, and is it still there in that size?
  bool holds(const HubFile& file) const;

  // Adds `file` and writes the record anew.
  Status add(const HubFile& file);

 private:
  struct Line {
    std::string digest;
    std::uint64_t bytes = 0;
  };

  std::filesystem::path folder_;
  std::filesystem::path path_;
  std::map<std::string, Line> lines_;  // by path
};

}  // namespace kun
