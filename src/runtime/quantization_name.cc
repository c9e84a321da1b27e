// A name of a format that the files do not have is refused, as vLLM refuses it: whoever gives it
// expects other files, or a conversion that would not happen.
#include "runtime/quantization_name.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace kun {
namespace {

struct Name {
  std::string_view name;
  // Ways of storing that it stands for, which become what the files say. None: it converts.
  std::vector<std::string_view> formats;
  // What weights of all other files become; kAuto: those are refused.
  WeightTarget others = WeightTarget::kAuto;
};

const std::vector<Name>& names() {
  static const std::vector<Name> kNames{
      {"fp8", {"fp8"}, WeightTarget::kInt8},
      {"awq", {"awq"}},
      {"awq_marlin", {"awq"}},
      {"gptq", {"gptq"}},
      {"gptq_marlin", {"gptq"}},
      {"moe_wna16", {"gptq", "awq"}},
      {"compressed-tensors", {"compressed-tensors"}},
      {"gguf", {"gguf"}},
      {"deepseek_v4_fp8", {"fp8"}},
      {"experts_int8", {}, WeightTarget::kInt8},
      {"int8", {}, WeightTarget::kInt8},
      {"int4", {}, WeightTarget::kInt4},
      {"bitsandbytes", {}, WeightTarget::kInt4},
  };
  return kNames;
}

}  // namespace

std::vector<std::string_view> quantization_names() {
  std::vector<std::string_view> out;
  std::ranges::transform(names(), std::back_inserter(out), &Name::name);
  return out;
}

Status check_quantization_name(std::string_view name) {
  if (std::ranges::find(names(), name, &Name::name) != names().end()) return {};
  return invalid_argument(fmt::format("--quantization {} is not supported; supported are {}", name,
                                      fmt::join(quantization_names(), ", ")));
}

Result<WeightTarget> target_of_quantization(std::string_view name, const Checkpoint& checkpoint) {
  RETURN_IF_ERROR(check_quantization_name(name));
  const Name& row = *std::ranges::find(names(), name, &Name::name);
  const std::string_view stored = checkpoint.quantization();
  if (std::ranges::find(row.formats, stored) != row.formats.end()) return WeightTarget::kAuto;
  if (row.others != WeightTarget::kAuto) return row.others;
  return invalid_argument(
      fmt::format("--quantization {} does not fit {}: {}", name, checkpoint.path().string(),
                  stored.empty() ? "its weights are not quantized; to convert them while loading "
                                   "give int8 or int4"
                                 : fmt::format("its weights are stored as {}", stored)));
}

}  // namespace kun
