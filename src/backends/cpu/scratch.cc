#include "backends/cpu/scratch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace kun {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kMappedFrom = std::int64_t{1} << 20;
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

}  // namespace

std::shared_ptr<std::byte> allocate_zeroed(std::int64_t bytes) {
  CHECK(bytes >= 0);
  if (bytes >= kMappedFrom) {  // the kernel zeroes pages when they are first touched
    const auto size = static_cast<std::size_t>(bytes);
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    if (bytes >= kHugePage) (void)::madvise(data, size, MADV_HUGEPAGE);
    return {static_cast<std::byte*>(data), [size](std::byte* p) { ::munmap(p, size); }};
  }
  const auto size = static_cast<std::size_t>((std::max<std::int64_t>(bytes, 1) + kAlignment - 1) /
                                             kAlignment * kAlignment);
  void* data = std::aligned_alloc(kAlignment, size);
  if (data == nullptr) return nullptr;
  std::memset(data, 0, size);
  return {static_cast<std::byte*>(data), [](std::byte* p) { std::free(p); }};
}

std::byte* Scratch::get(std::int64_t bytes) {
  if (bytes > capacity_) {
    data_.reset();
    capacity_ = bytes + bytes / 2;
    data_ = allocate_zeroed(capacity_);
    CHECK(data_ != nullptr);
  }
  return data_.get();
}

}  // namespace kun
