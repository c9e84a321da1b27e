// What --kv-cache-dtype means, for the command line and for Python.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "tensor/dtype.h"

namespace kun {

// "auto" is empty: as the arithmetic has it. Names are vLLM's; those of FP8 say what to use
// instead.
Result<std::optional<DType>> parse_cache_dtype(std::string_view name);

}  // namespace kun
