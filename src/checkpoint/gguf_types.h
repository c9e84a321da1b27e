// The tensor types a GGUF file may name, all of them: also those we cannot compute with, so that a
// refusal can call the type by its name. Ids, blocks and sizes are ggml's (ggml-common.h, ggml.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tensor/weight_view.h"

namespace kun {

struct GgufTensorType {
  std::uint32_t id = 0;
  std::string_view name;
  int block_columns = 0;  // 0: retired, its layout is no longer defined
  int block_bytes = 0;
  std::optional<WeightFormat> format;  // what we compute with; empty when we cannot
};

// nullptr for an id that ggml has not defined.
const GgufTensorType* find_gguf_tensor_type(std::uint32_t id);

// "Q4_K", or "type 1234" for an unknown id.
std::string gguf_tensor_type_name(std::uint32_t id);

}  // namespace kun
