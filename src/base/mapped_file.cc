#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace kun {
namespace {

constexpr std::uintptr_t kPage = 65536;  // a multiple of every page size in use

FileStamp stamp_of(const std::filesystem::path& path, const struct stat& info) {
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + std::int64_t{time.tv_nsec};
  };
  std::error_code failed;
  const std::filesystem::path full = std::filesystem::absolute(path, failed);
  return {.path = failed ? path : full,
          .device = info.st_dev,
          .inode = info.st_ino,
          .bytes = info.st_size,
          .modified = nanoseconds(info.st_mtim),
          .changed = nanoseconds(info.st_ctim)};
}

}  // namespace

Result<FileStamp> FileStamp::of(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return stamp_of(path, info);
  return not_found(fmt::format("cannot look at {}: {}", path.string(), std::strerror(errno)));
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  // Not blocking: a FIFO without a writer would hold us here before we see that it is no file.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return not_found(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)));
  }
  struct stat info {};
  if (::fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    return invalid_argument(fmt::format("{} is not a regular file", path.string()));
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  void* address = nullptr;
  if (size > 0) {
    address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  }
  const int error = errno;
  ::close(descriptor);
  if (address == MAP_FAILED) {
    return internal_error(fmt::format("cannot map {}: {}", path.string(), std::strerror(error)));
  }
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, stamp_of(path, info), {static_cast<const std::byte*>(address), size}));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void prefetch_pages(std::span<const std::byte> bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(bytes.data()) / kPage * kPage;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size();
  if (end > first) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_WILLNEED);
}

void release_pages(std::span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const auto first = (begin + kPage - 1) / kPage * kPage;
  const auto end = (begin + bytes.size()) / kPage * kPage;
  if (end > first) ::madvise(reinterpret_cast<void*>(first), end - first, MADV_DONTNEED);
}

}  // namespace kun
