#include "tensor/dtype.h"

namespace kun {

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kI8: return "int8";
    case DType::kU8: return "uint8";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
    case DType::kF8E4M3: return "float8_e4m3";
    case DType::kF8E8M0: return "float8_e8m0";
  }
  return "unknown";
}

}  // namespace kun
