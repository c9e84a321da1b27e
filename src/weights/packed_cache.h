// Keeps packed matrices in a file, so that a model whose weights are converted while loading is
// converted once per host.
//
// One file holds one model for one packing. Its name and its header carry the identity: the source
// files (path, device, inode, size, times, taken when each was opened) and how weights were packed;
// a file of another identity, another version or another length is not looked into. It is written
// beside its final name and renamed when all of it is on the disk and the source files are still
// what they were, so there are no half-written or mixed ones. Every matrix has a checksum, verified
// as it is read. A cache that fails costs time, never correctness.
//
// One thread at a time, except that finish() leaves the disk to a thread of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "device/packed_image.h"

namespace kun {

class PackedCache {
 public:
  // Looks for the cache of `sources` packed as `packing` says. Never fails: without a usable folder
  // nothing is found and nothing is kept.
  PackedCache(std::filesystem::path folder, std::vector<FileStamp> sources,
              std::string_view packing);
  ~PackedCache();
  PackedCache(const PackedCache&) = delete;
  PackedCache& operator=(const PackedCache&) = delete;

  // Whether a complete cache was found.
  bool found() const { return file_ != nullptr; }
  // Of all images that were found or added.
  std::uint64_t image_bytes() const;

  // What was kept under `key`. Empty when there is nothing. The bytes live as long as this. Those
  // that were kept next are asked for from the disk.
  std::optional<PackedImage> find(std::string_view key);

  // The image of `key` was damaged: the file is not believed again, and removed.
  void reject(std::string_view key);

  // Keeps an image for the next start; ignored while a cache is being read or after an error.
  void add(std::string_view key, const PackedImage& image);

  // All matrices of the model have been added: the file becomes valid once the disk has it. If this
  // is not called, what was added is lost.
  void finish();

  // Blocks until finish() is done. For tests, and for processes that are about to end.
  void wait();

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Entry {
    std::string layout;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t checksum = 0;
  };

  bool read_index();
  bool begin();
  bool create_temporary();
  bool sources_changed() const;
  bool write(std::span<const std::byte> bytes);
  bool write_index();
  void give_up(std::string_view what);
  void commit();

  std::filesystem::path folder_;
  std::vector<FileStamp> sources_;
  std::filesystem::path path_;
  std::string family_;    // what files of the same model and packing begin with
  std::string identity_;  // empty: caching is impossible
  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::uint64_t prefetched_ = 0;  // up to this offset

  // While writing.
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool failed_ = false;
  std::thread committer_;
};

}  // namespace kun
