// Scratch memory for one step: layers take what they need, and all of it is given back at once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "device/ops.h"

namespace kun::nn {

// Grows during the first steps of a new size and is reused from then on. One step at a time.
class Scratch {
 public:
  explicit Scratch(Ops& ops) : ops_(ops) {}

  // F32, contiguous, aligned to 64 bytes, not initialized. Valid until the next reset().
  TensorView take(std::initializer_list<std::int64_t> shape);

  // Gives everything back. What had to be allocated in pieces becomes one piece.
  void reset();

  // Gives back what was taken after the mark: memory of one layer serves the next.
  std::int64_t mark() const { return used_; }
  void rewind(std::int64_t mark);

 private:
  Ops& ops_;
  std::shared_ptr<std::byte> arena_;
  std::int64_t arena_bytes_ = 0;
  std::int64_t used_ = 0;                             // of an arena large enough for everything
  std::int64_t used_max_ = 0;                         // since the last reset
  std::vector<std::shared_ptr<std::byte>> overflow_;  // what the arena had no room for
};

}  // namespace kun::nn
