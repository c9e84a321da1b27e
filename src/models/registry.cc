#include "models/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "models/factories.h"

namespace kun {
namespace {

constexpr std::array kArchitectures{
    Architecture{"LlamaForCausalLM", load_llama},
    Architecture{"Qwen2ForCausalLM", load_qwen2},
    Architecture{"Qwen3ForCausalLM", load_qwen3},
    Architecture{"DeepseekForCausalLM", load_deepseek},
    Architecture{"DeepseekV2ForCausalLM", load_deepseek_v2},
    Architecture{"DeepseekV3ForCausalLM", load_deepseek_v3},
    Architecture{"DeepseekV32ForCausalLM", load_deepseek_v32},
    Architecture{"DeepseekV4ForCausalLM", load_deepseek_v4},
    Architecture{"DeepseekV41ForCausalLM", nullptr},
};

std::string supported_names() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.load == nullptr) continue;
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

Result<std::unique_ptr<const Model>> load_model(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options) {
  const std::string wanted = checkpoint.config().architecture();
  const auto found =
      std::find_if(kArchitectures.begin(), kArchitectures.end(),
                   [&](const Architecture& architecture) { return architecture.name == wanted; });
  if (found == kArchitectures.end()) {
    return unimplemented(fmt::format("architecture '{}' of {} is unknown; supported are {}", wanted,
                                     checkpoint.config().name(), supported_names()));
  }
  if (found->load == nullptr) {
    return unimplemented(fmt::format("architecture {} of {} is not supported yet; supported are {}",
                                     wanted, checkpoint.config().name(), supported_names()));
  }
  return found->load(checkpoint, ops, options);
}

}  // namespace kun
