#include "runtime/cache_dtype.h"

#include <fmt/format.h>

namespace kun {

Result<std::optional<DType>> parse_cache_dtype(std::string_view name) {
  if (name == "auto") return std::optional<DType>();
  if (name == "bfloat16") return std::optional(DType::kBF16);
  if (name == "float32") return std::optional(DType::kF32);
  if (name == "int8") return std::optional(DType::kI8);
  if (name.starts_with("fp8")) {
    return unimplemented(fmt::format(
        "a KV cache of {} is not supported, for no processor here multiplies FP8; use int8, which "
        "is as small and keeps a scale for every head of every token",
        name));
  }
  return invalid_argument(fmt::format(
      "the type of the KV cache can be auto, bfloat16, float32 or int8, and not '{}'", name));
}

}  // namespace kun
