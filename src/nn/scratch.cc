#include "nn/scratch.h"

#include <algorithm>

namespace kun::nn {
namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

TensorView Scratch::take(std::initializer_list<std::int64_t> shape) {
  std::int64_t bytes = size_bytes(DType::kF32);
  for (const std::int64_t dim : shape) bytes *= dim;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (const Segment& segment : segments_) {
    const std::int64_t start = std::max(used_, segment.begin);
    if (start + bytes > segment.end) continue;
    used_ = start + bytes;
    return {segment.data.get() + (start - segment.begin), DType::kF32, shape};
  }
  used_ = capacity() + bytes;
  add_segment(std::max(bytes, capacity()));
  return {segments_.back().data.get(), DType::kF32, shape};
}

// Memory the device does not have shows as a view of null, as everywhere.
void Scratch::add_segment(std::int64_t bytes) {
  const std::int64_t begin = capacity();
  segments_.push_back({ops_.allocate(bytes), begin, begin + bytes});
}

void Scratch::reset() {
  if (segments_.size() > 1) {
    const std::int64_t bytes = capacity();
    segments_.clear();  // first, so that both never exist together
    add_segment(bytes);
  }
  used_ = 0;
}

void Scratch::rewind(std::int64_t mark) {
  CHECK(mark >= 0 && mark <= used_);
  used_ = mark;
}

}  // namespace kun::nn
