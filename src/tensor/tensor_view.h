// A TensorView says where numbers lie in memory. It owns nothing and computes nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/check.h"
#include "tensor/dtype.h"

namespace kun {

// Row-major, rank 1 to 4; only the last dimension is contiguous, so a slice of columns is a view.
template <class Byte>
struct BasicTensorView {
  static constexpr int kRankMax = 4;

  Byte* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, kRankMax> shape{};
  std::array<std::int64_t, kRankMax> stride{};  // in elements

  BasicTensorView() = default;
  BasicTensorView(Byte* bytes, DType type, std::initializer_list<std::int64_t> dims)
      : data(bytes), dtype(type), rank(static_cast<int>(dims.size())) {
    CHECK(rank >= 1 && rank <= kRankMax);
    std::size_t i = 0;
    for (const std::int64_t dim : dims) shape[i++] = dim;
    std::int64_t step = 1;
    while (i-- > 0) {
      stride[i] = step;
      step *= shape[i];
    }
  }

  // A mutable view reads as a const one, never the reverse (like std::span).
  operator BasicTensorView<const Byte>() const requires(!std::is_const_v<Byte>) {
    BasicTensorView<const Byte> view;
    view.data = data;
    view.dtype = dtype;
    view.rank = rank;
    view.shape = shape;
    view.stride = stride;
    return view;
  }

  std::int64_t rows() const { return shape[0]; }
  std::int64_t cols() const { return shape[static_cast<std::size_t>(rank - 1)]; }

  // The first element of row `index` of the leading dimension.
  template <class T>
  auto* row(std::int64_t index) const {
    DCHECK(index >= 0 && index < rows());
    using Element = std::conditional_t<std::is_const_v<Byte>, const T, T>;
    return reinterpret_cast<Element*>(data) + index * stride[0];
  }

  // Rows [first, first + count) of the leading dimension.
  BasicTensorView slice_rows(std::int64_t first, std::int64_t count) const {
    CHECK(first >= 0 && count >= 0 && first + count <= rows());
    BasicTensorView view = *this;
    view.data += first * stride[0] * size_bytes(dtype);
    view.shape[0] = count;
    return view;
  }

  // Columns [first, first + count) of the last dimension.
  BasicTensorView slice_cols(std::int64_t first, std::int64_t count) const {
    CHECK(first >= 0 && count >= 0 && first + count <= cols());
    BasicTensorView view = *this;
    view.data += first * size_bytes(dtype);
    view.shape[static_cast<std::size_t>(rank - 1)] = count;
    return view;
  }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

static_assert(std::is_trivially_copyable_v<TensorView>);

}  // namespace kun
