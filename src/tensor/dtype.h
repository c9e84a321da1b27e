// What one stored number is.
#pragma once

#include <cstdint>
#include <string_view>

namespace kun {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kI8, kU8, kI32, kI64, kF8E4M3, kF8E8M0 };

constexpr std::int64_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::kI64: return 8;
    case DType::kF32:
    case DType::kI32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kF8E4M3:
    case DType::kF8E8M0: return 1;
  }
  return 0;
}

// "float32", "bfloat16", ...: the names PyTorch and vLLM use.
std::string_view name(DType dtype);

}  // namespace kun
