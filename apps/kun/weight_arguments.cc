// What weights become in memory: --weight-format, vLLM's --quantization, and where the result is
// kept between starts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>

#include "base/kun_home.h"
#include "cli.h"

namespace kun {
namespace {

struct Name {
  std::string_view name;
  WeightTarget target;
};

constexpr std::array kFormats{
    Name{"auto", WeightTarget::kAuto}, Name{"as-stored", WeightTarget::kAsStored},
    Name{"bf16", WeightTarget::kBF16}, Name{"int8", WeightTarget::kInt8},
    Name{"int4", WeightTarget::kInt4},
};

// vLLM's names: those of checkpoint formats, which the files announce themselves, and those that
// quantize while loading, for which we have an equal or a near relation. "fp8" is both.
constexpr std::array kQuantizations{
    Name{"awq", WeightTarget::kAuto},
    Name{"awq_marlin", WeightTarget::kAuto},
    Name{"gptq", WeightTarget::kAuto},
    Name{"gptq_marlin", WeightTarget::kAuto},
    Name{"compressed-tensors", WeightTarget::kAuto},
    Name{"gguf", WeightTarget::kAuto},
    Name{"deepseek_v4_fp8", WeightTarget::kAuto},
    Name{"experts_int8", WeightTarget::kInt8},
    Name{"int8", WeightTarget::kInt8},
    Name{"int4", WeightTarget::kInt4},
    Name{"bitsandbytes", WeightTarget::kInt4},
};

template <std::size_t count>
std::vector<std::string> names_of(const std::array<Name, count>& table) {
  std::vector<std::string> out;
  for (const Name& row : table) out.emplace_back(row.name);
  return out;
}

// FP8 files as they are; others in the 8 bits that processors multiply.
Result<WeightTarget> fp8_target(const ModelArguments& arguments) {
  ASSIGN_OR_RETURN(const std::string path, resolve_model(arguments.model));
  ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(path));
  return checkpoint->config().has("quantization_config") ? WeightTarget::kAuto
                                                         : WeightTarget::kInt8;
}

}  // namespace

void add_weight_arguments(CLI::App& command, ModelArguments& arguments) {
  command
      .add_option("--weight-format", arguments.weight_format,
                  "what weights become in memory: auto (as stored or the nearest fast form), "
                  "as-stored (nothing rounded below bfloat16), bf16, int8, int4")
      ->check(CLI::IsMember(names_of(kFormats)))
      ->capture_default_str();
  command.add_option(
      "--quantization,-q", arguments.quantization,
      fmt::format("vLLM's names for the same: fp8, {}", fmt::join(names_of(kQuantizations), ", ")));
  command
      .add_option("--weights-cache", arguments.weights_cache,
                  "folder that keeps converted weights for the next start; auto: "
                  "$KUN_HOME/packed-weights for bf16, int8 and int4; off")
      ->capture_default_str();
}

Result<WeightTarget> weight_target(const ModelArguments& arguments) {
  WeightTarget target = WeightTarget::kAuto;
  for (const Name& row : kFormats) {
    if (row.name == arguments.weight_format) target = row.target;
  }
  if (arguments.quantization.empty() || arguments.quantization == "none") return target;
  if (target != WeightTarget::kAuto) {
    return invalid_argument("give --weight-format or --quantization, not both");
  }
  if (arguments.quantization == "fp8") return fp8_target(arguments);
  for (const Name& row : kQuantizations) {
    if (row.name == arguments.quantization) return row.target;
  }
  return invalid_argument(fmt::format("--quantization {} is not supported; supported are fp8, {}",
                                      arguments.quantization,
                                      fmt::join(names_of(kQuantizations), ", ")));
}

Result<std::string> packed_cache_folder(const ModelArguments& arguments) {
  if (arguments.weights_cache == "off") return std::string();
  if (arguments.weights_cache != "auto") return arguments.weights_cache;
  ASSIGN_OR_RETURN(const WeightTarget target, weight_target(arguments));
  const bool converts = target == WeightTarget::kBF16 || target == WeightTarget::kInt8 ||
                        target == WeightTarget::kInt4;
  return converts ? (kun_home() / "packed-weights").string() : std::string();
}

}  // namespace kun
