// A file mapped read-only into memory. Its bytes belong to whoever wrote the file: nothing in them
// may be trusted, and a file that shrinks while mapped ends the process with SIGBUS.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "base/status.h"

namespace kun {

// Which file it was, and in what state: equal as long as it is the same file and unchanged, which
// its time of change tells, since no program can set that back.
struct FileStamp {
  std::filesystem::path path;  // absolute
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t bytes = 0;
  std::int64_t modified = 0;  // nanoseconds since 1970
  std::int64_t changed = 0;

  bool operator==(const FileStamp&) const = default;

  // Of the file that is at `path` now.
  static Result<FileStamp> of(const std::filesystem::path& path);
};

class MappedFile {
 public:
  // Fails when the file does not exist, is no regular file or cannot be read. Empty files map.
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);

  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Of the file whose bytes these are, whatever is at its path by now.
  const FileStamp& stamp() const { return stamp_; }

 private:
  MappedFile(std::filesystem::path path, FileStamp stamp, std::span<const std::byte> bytes)
      : path_(std::move(path)), stamp_(std::move(stamp)), bytes_(bytes) {}

  std::filesystem::path path_;
  FileStamp stamp_;
  std::span<const std::byte> bytes_;
};

// Hints about parts of a mapped file: they will be read soon; they are not needed any more (and
// would be read again if they were). Only whole pages inside `bytes` are released. Requires: bytes
// of a MappedFile; released memory of any other kind is lost.
void prefetch_pages(std::span<const std::byte> bytes);
void release_pages(std::span<const std::byte> bytes);

}  // namespace kun
