// What weights become in memory: --weight-format, vLLM's --quantization, and where the result is
// kept between starts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>

#include "base/kun_home.h"
#include "cli.h"
#include "runtime/quantization_name.h"

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

template <std::size_t count>
std::vector<std::string> names_of(const std::array<Name, count>& table) {
  std::vector<std::string> out;
  for (const Name& row : table) out.emplace_back(row.name);
  return out;
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
      fmt::format("vLLM's names for the same: {}", fmt::join(quantization_names(), ", ")));
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
  RETURN_IF_ERROR(check_quantization_name(arguments.quantization));
  ASSIGN_OR_RETURN(const std::string path, resolve_model(arguments.model));
  ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(path));
  return target_of_quantization(arguments.quantization, *checkpoint);
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
