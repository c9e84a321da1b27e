// Rows of a projection seen as heads.
#pragma once

#include "base/check.h"
#include "tensor/tensor_view.h"

namespace kun::nn {

// Columns [first, first + heads * width) of `rows`, seen as [token, head, width].
inline TensorView heads_of(TensorView rows, std::int64_t first, std::int64_t heads,
                           std::int64_t width) {
  TensorView view = rows.slice_cols(first, heads * width);
  view.rank = 3;
  view.shape = {rows.rows(), heads, width, 0};
  view.stride = {rows.stride[0], width, 1, 0};
  return view;
}

// Heads [first, first + count) of [token, head, width].
inline TensorView slice_heads(TensorView all, std::int64_t first, std::int64_t count) {
  CHECK(all.rank == 3 && first >= 0 && first + count <= all.shape[1]);
  all.data += first * all.stride[1] * size_bytes(all.dtype);
  all.shape[1] = count;
  return all;
}

// [token, head, width], heads side by side, as [token, head * width].
inline TensorView flat_heads(TensorView all) {
  CHECK(all.rank == 3 && all.stride[1] == all.shape[2]);
  all.rank = 2;
  all.shape = {all.shape[0], all.shape[1] * all.shape[2], 0, 0};
  all.stride = {all.stride[0], 1, 0, 0};
  return all;
}

// [token, count * width] as [token, count, width], to read.
inline ConstTensorView split_heads(ConstTensorView rows, std::int64_t count) {
  CHECK(rows.rank == 2 && rows.cols() % count == 0);
  const std::int64_t width = rows.cols() / count;
  rows.rank = 3;
  rows.shape = {rows.rows(), count, width, 0};
  rows.stride = {rows.stride[0], width, 1, 0};
  return rows;
}

// The same rows for each of `count` heads: [token, 1, width] as [token, count, width].
inline ConstTensorView repeat_head(ConstTensorView one, std::int64_t count) {
  CHECK(one.rank == 3 && one.shape[1] == 1);
  one.shape[1] = count;
  one.stride[1] = 0;
  return one;
}

// F32 scratch as I32.
inline TensorView as_integers(TensorView view) {
  view.dtype = DType::kI32;
  return view;
}

}  // namespace kun::nn
