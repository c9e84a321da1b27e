// Scratch memory for one step: layers take what they need, and all of it is given back at once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "device/ops.h"

namespace kun::nn {

// A line of addresses of its own, backed by segments one after the other. A step that outgrows them
// adds one, which every later layer uses again; the next step starts with a single segment as long
// as all. So only the first steps of a new size allocate, and those a few times, not per layer.
// One step at a time.
class Scratch {
 public:
  explicit Scratch(Ops& ops) : ops_(ops) {}

  // F32, contiguous, aligned to 64 bytes, not initialized. Valid until the next reset().
  TensorView take(std::initializer_list<std::int64_t> shape);

  // Lists of a step, beside its tensors: `count` of what needs no destructor, not initialized.
  template <class T>
  std::span<T> take_list(std::int64_t count) {
    static_assert(std::is_trivially_destructible_v<T> && alignof(T) <= 64);
    const auto bytes = count * static_cast<std::int64_t>(sizeof(T));
    const TensorView floats = take({(bytes + 3) / 4});
    return {reinterpret_cast<T*>(floats.data), static_cast<std::size_t>(count)};
  }

  // Gives everything back.
  void reset();

  // Gives back what was taken after the mark: memory of one layer serves the next.
  std::int64_t mark() const { return used_; }
  void rewind(std::int64_t mark);

 private:
  struct Segment {
    std::shared_ptr<std::byte> data;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  void add_segment(std::int64_t bytes);
  std::int64_t capacity() const { return segments_.empty() ? 0 : segments_.back().end; }

  Ops& ops_;
  std::vector<Segment> segments_;  // adjacent, from 0 on
  std::int64_t used_ = 0;
};

}  // namespace kun::nn
