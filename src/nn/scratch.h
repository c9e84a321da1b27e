// Scratch memory for one step: layers take what they need, and all of it is given back at once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
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
