// A file mapped read-only into memory. Its bytes belong to whoever wrote the file: nothing in them
// may be trusted, and a file that shrinks while mapped ends the process with SIGBUS.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "base/status.h"

namespace kun {

class MappedFile {
 public:
  // Fails when the file does not exist, is no regular file or cannot be read. Empty files map.
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  MappedFile(std::filesystem::path path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// Hints about parts of a mapped file: they will be read soon; they are not needed any more (and
// would be read again if they were). Only whole pages inside `bytes` are released. Requires: bytes
// of a MappedFile; released memory of any other kind is lost.
void prefetch_pages(std::span<const std::byte> bytes);
void release_pages(std::span<const std::byte> bytes);

}  // namespace kun
