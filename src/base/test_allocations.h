// Counts what a test program allocates, in all of its threads: one file of the program includes
// this, for it defines new and delete. All forms of them are replaced together, else a sanitizer
// would see them mixed.
#pragma once

#include <atomic>
#include <cstdlib>
#include <new>

namespace kun {

std::atomic<std::size_t> allocation_count{0};
std::atomic<std::size_t> allocated_bytes{0};

}  // namespace kun

namespace {

[[gnu::noinline]] void* allocate_counted(std::size_t size) {
  kun::allocation_count.fetch_add(1, std::memory_order_relaxed);
  kun::allocated_bytes.fetch_add(size, std::memory_order_relaxed);
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  std::abort();
}
[[gnu::noinline]] void release_counted(void* memory) {
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate_counted(size);
}
void* operator new[](std::size_t size) {
  return allocate_counted(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_counted(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_counted(size);
}
void operator delete(void* memory) noexcept {
  release_counted(memory);
}
void operator delete[](void* memory) noexcept {
  release_counted(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release_counted(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release_counted(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  release_counted(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  release_counted(memory);
}
