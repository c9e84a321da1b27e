// Where the backend's memory comes from: mapped pages, slabs for weights, and scratch that
// operations borrow, so that none of them allocates once warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kun {

// Zeroed memory aligned to 64 bytes (to a page when large, a huge one if wished); null when there
// is none.
std::shared_ptr<std::byte> allocate_zeroed(std::int64_t bytes, bool huge_pages = true);

// Cuts pieces from large slabs, so that small weight matrices lie one after the other in huge
// pages: decoding reads them that way. A slab is freed when its last piece is. On a machine of
// several memory nodes a page belongs to the node that first writes to it: there a matrix gets
// pages of its own, small enough that each node has its rows near. Not thread-safe.
class Slabs {
 public:
  explicit Slabs(int node_count = 1) : node_count_(node_count) {}

  // As allocate_zeroed.
  std::shared_ptr<std::byte> take(std::int64_t bytes);

 private:
  int node_count_;
  std::shared_ptr<std::byte> slab_;
  std::int64_t used_ = 0;
};

// Grows to the largest request so far. Not thread-safe; what it returns is lost at the next call.
class Scratch {
 public:
  // Gives each of `all` what the largest of them has, in pages that nobody has touched: a thread
  // that had no work of the largest kind yet would otherwise allocate when it comes to that.
  static void level(std::span<Scratch> all);

  // At least `bytes` of unspecified content, aligned to 64 bytes.
  std::byte* get(std::int64_t bytes);

  template <class T>
  T* get_array(std::int64_t count) {
    return reinterpret_cast<T*>(get(count * static_cast<std::int64_t>(sizeof(T))));
  }

 private:
  std::shared_ptr<std::byte> data_;
  std::int64_t capacity_ = 0;
};

}  // namespace kun
