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
  const std::int64_t offset = used_;
  used_ += bytes;
  used_max_ = std::max(used_max_, used_);
  if (used_ <= arena_bytes_) return {arena_.get() + offset, DType::kF32, shape};
  overflow_.push_back(ops_.allocate(bytes));
  return {overflow_.back().get(), DType::kF32, shape};
}

void Scratch::reset() {
  if (used_max_ > arena_bytes_) {
    overflow_.clear();
    arena_.reset();
    arena_ = ops_.allocate(used_max_);
    arena_bytes_ = used_max_;
  }
  used_ = 0;
  used_max_ = 0;
}

void Scratch::rewind(std::int64_t mark) {
  CHECK(mark >= 0 && mark <= used_);
  used_ = mark;
}

}  // namespace kun::nn
