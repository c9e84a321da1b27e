// How many bytes a cache keeps for one entry: what layouts, pools and devices must agree on.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace kun {

// The longest head of an int8 cache: sums of its products are exact in a float.
constexpr int kInt8HeadWidthMax = 1024;

// `width` elements; with int8 also an F32 scale for every `head_width` of them (0: for all).
constexpr std::int64_t cache_entry_bytes(DType dtype, std::int64_t width, std::int64_t head_width) {
  const std::int64_t elements = width * size_bytes(dtype);
  if (dtype != DType::kI8) return elements;
  const std::int64_t scales = head_width > 0 ? width / head_width : 1;
  return elements + scales * size_bytes(DType::kF32);
}

}  // namespace kun
