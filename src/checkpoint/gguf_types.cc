// A table in id order, searched linearly: it is short, and looked at once per tensor.
#include "checkpoint/gguf_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kun {
namespace {

constexpr GgufTensorType kTypes[] = {
    {0, "F32", 1, 4, WeightFormat::kF32},
    {1, "F16", 1, 2, WeightFormat::kF16},
    {2, "Q4_0", 32, 18, WeightFormat::kQ4_0},
    {3, "Q4_1", 32, 20, WeightFormat::kQ4_1},
    {4, "Q4_2", 0, 0, {}},
    {5, "Q4_3", 0, 0, {}},
    {6, "Q5_0", 32, 22, WeightFormat::kQ5_0},
    {7, "Q5_1", 32, 24, WeightFormat::kQ5_1},
    {8, "Q8_0", 32, 34, WeightFormat::kQ8_0},
    {9, "Q8_1", 32, 36, {}},
    {10, "Q2_K", 256, 84, WeightFormat::kQ2_K},
    {11, "Q3_K", 256, 110, WeightFormat::kQ3_K},
    {12, "Q4_K", 256, 144, WeightFormat::kQ4_K},
    {13, "Q5_K", 256, 176, WeightFormat::kQ5_K},
    {14, "Q6_K", 256, 210, WeightFormat::kQ6_K},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, WeightFormat::kIQ4_NL},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, WeightFormat::kIQ4_XS},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {30, "BF16", 1, 2, WeightFormat::kBF16},
    {31, "Q4_0_4_4", 0, 0, {}},
    {32, "Q4_0_4_8", 0, 0, {}},
    {33, "Q4_0_8_8", 0, 0, {}},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {36, "IQ4_NL_4_4", 0, 0, {}},
    {37, "IQ4_NL_4_8", 0, 0, {}},
    {38, "IQ4_NL_8_8", 0, 0, {}},
    {39, "MXFP4", 32, 17, WeightFormat::kMXFP4},
    {40, "NVFP4", 64, 36, WeightFormat::kNVFP4},
    {41, "Q1_0", 128, 18, {}},
    {42, "Q2_0", 64, 18, {}},
};

}  // namespace

const GgufTensorType* find_gguf_tensor_type(std::uint32_t id) {
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [id](const GgufTensorType& type) { return type.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

std::string gguf_tensor_type_name(std::uint32_t id) {
  const GgufTensorType* type = find_gguf_tensor_type(id);
  return type != nullptr ? std::string(type->name) : fmt::format("type {}", id);
}

}  // namespace kun
