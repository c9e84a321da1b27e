#include "backends/cpu/scratch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace kun {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kMappedFrom = std::int64_t{1} << 20;
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
constexpr std::int64_t kSlabBytes = std::int64_t{64} << 20;
// What scratch starts with: lists that grow with the context should rarely make it grow.
constexpr std::int64_t kScratchMin = std::int64_t{64} << 10;
// From here on the pages at the seams between nodes' rows are few.
constexpr std::int64_t kHugePagesPerNode = 16;

// Mapped memory is zeroed by the kernel when first touched. Huge pages need an aligned start, which
// a longer mapping surely contains; what is around it goes back.
std::shared_ptr<std::byte> map_zeroed(std::int64_t bytes, bool huge_pages) {
  static const std::int64_t page = ::sysconf(_SC_PAGESIZE);  // 4 KiB, or 64 on some arm64 systems
  const std::int64_t alignment = huge_pages && bytes >= kHugePage ? kHugePage : 0;
  const auto mapped = static_cast<std::size_t>(bytes + alignment);
  void* address =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  auto* data = static_cast<std::byte*>(address);
  const auto size = static_cast<std::size_t>((bytes + page - 1) / page * page);
  if (alignment > 0) {
    const auto misaligned = reinterpret_cast<std::uintptr_t>(data) % kHugePage;
    const std::size_t skip = misaligned == 0 ? 0 : kHugePage - misaligned;
    if (skip > 0) ::munmap(data, skip);
    data += skip;
    if (mapped > skip + size) ::munmap(data + size, mapped - skip - size);
    (void)::madvise(data, size, MADV_HUGEPAGE);
  } else if (!huge_pages) {
    (void)::madvise(data, size, MADV_NOHUGEPAGE);  // some systems give them unasked
  }
  return {data, [size](std::byte* p) { ::munmap(p, size); }};
}

}  // namespace

std::shared_ptr<std::byte> allocate_zeroed(std::int64_t bytes, bool huge_pages) {
  CHECK(bytes >= 0);
  if (bytes >= kMappedFrom) return map_zeroed(bytes, huge_pages);
  const auto size = static_cast<std::size_t>((std::max<std::int64_t>(bytes, 1) + kAlignment - 1) /
                                             kAlignment * kAlignment);
  void* data = std::aligned_alloc(kAlignment, size);
  if (data == nullptr) return nullptr;
  std::memset(data, 0, size);
  return {static_cast<std::byte*>(data), [](std::byte* p) { std::free(p); }};
}

std::shared_ptr<std::byte> Slabs::take(std::int64_t bytes) {
  if (node_count_ > 1)
    return allocate_zeroed(bytes, bytes >= node_count_ * kHugePagesPerNode * kHugePage);
  if (bytes >= kSlabBytes / 4) return allocate_zeroed(bytes);
  const std::int64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (slab_ == nullptr || used_ + size > kSlabBytes) {
    slab_ = allocate_zeroed(kSlabBytes);
    used_ = 0;
    if (slab_ == nullptr) return nullptr;
  }
  std::byte* start = slab_.get() + used_;
  used_ += size;
  return {slab_, start};  // keeps the whole slab
}

void Scratch::level(std::span<Scratch> all) {
  std::int64_t most = 0;
  for (const Scratch& scratch : all) most = std::max(most, scratch.capacity_);
  for (Scratch& scratch : all) {
    if (scratch.capacity_ == most) continue;
    scratch.data_.reset();
    scratch.data_ = map_zeroed(most, false);
    CHECK(scratch.data_ != nullptr);
    scratch.capacity_ = most;
  }
}

std::byte* Scratch::get(std::int64_t bytes) {
  if (bytes > capacity_) {
    data_.reset();
    capacity_ = std::max(bytes + bytes / 2, kScratchMin);
    data_ = allocate_zeroed(capacity_);
    CHECK(data_ != nullptr);
  }
  return data_.get();
}

}  // namespace kun
