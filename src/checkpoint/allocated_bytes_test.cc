// Counts what this test program allocates, so that a test can say "no more than the file
// justifies". All forms of new and delete are replaced together, else a sanitizer would see them
// mixed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "checkpoint/test_files.h"

std::size_t kun::allocated_bytes = 0;

namespace {

[[gnu::noinline]] void* allocate(std::size_t size) {
  kun::allocated_bytes += size;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  std::abort();
}
[[gnu::noinline]] void release(void* memory) {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(size);
}
void* operator new[](std::size_t size) {
  return allocate(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size);
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  release(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  release(memory);
}

namespace kun {
namespace {

TEST(AllocatedBytes, CountsWhatIsAllocated) {
  const std::size_t before = allocated_bytes;
  const auto memory = std::make_unique<std::byte[]>(1000);
  EXPECT_NE(memory, nullptr);
  EXPECT_GE(allocated_bytes - before, 1000U);
}

}  // namespace
}  // namespace kun
