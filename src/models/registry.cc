#include "models/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "models/factories.h"

namespace kun {
namespace {

constexpr std::array kArchitectures{
    Architecture{"LlamaForCausalLM", load_llama, dense_decoder_layout},
    Architecture{"Qwen2ForCausalLM", load_qwen2, dense_decoder_layout},
    Architecture{"Qwen3ForCausalLM", load_qwen3, dense_decoder_layout},
    Architecture{"DeepseekForCausalLM", load_deepseek, dense_decoder_layout},
    Architecture{"DeepseekV2ForCausalLM", load_deepseek_v2, latent_decoder_layout},
    Architecture{"DeepseekV3ForCausalLM", load_deepseek_v3, latent_decoder_layout, true},
    Architecture{"DeepseekV32ForCausalLM", load_deepseek_v32, deepseek_v32_layout, true},
    Architecture{"DeepseekV4ForCausalLM", load_deepseek_v4, deepseek_v4_layout},
    Architecture{"DeepseekV41ForCausalLM", nullptr, nullptr},
};

std::string supported_names() {
  std::string names;
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.load == nullptr) continue;
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

Result<const Architecture*> find_architecture(const Checkpoint& checkpoint) {
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
  return &*found;
}

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

Result<std::unique_ptr<const Model>> load_model(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options) {
  ASSIGN_OR_RETURN(const Architecture* found, find_architecture(checkpoint));
  if (options.next_token_module && !found->has_next_token_module) {
    return unimplemented(fmt::format(
        "no next-token module (MTP) can be loaded for architecture {} of {}: those of DeepSeek-V3, "
        "R1, V3.1 and V3.2 can; choose another method of speculation",
        checkpoint.config().architecture(), checkpoint.config().name()));
  }
  return found->load(checkpoint, ops, options);
}

Result<KvLayout> plan_kv_layout(const Checkpoint& checkpoint, DType cache_dtype) {
  ASSIGN_OR_RETURN(const Architecture* found, find_architecture(checkpoint));
  return found->layout(checkpoint, cache_dtype);
}

Result<WeightPlan> plan_weights(const Checkpoint& checkpoint, Ops& ops, DType cache_dtype) {
  WeightPlan plan;
  ModelOptions options;
  options.cache_dtype = cache_dtype;
  options.plan = &plan;
  ASSIGN_OR_RETURN(const auto model, load_model(checkpoint, ops, options));
  WeightPlan both;
  options.plan = &both;
  options.next_token_module = true;
  if (load_model(checkpoint, ops, options)) {  // else there is none
    plan.module_bytes = both.packed_bytes - plan.packed_bytes;
  }
  return plan;
}

}  // namespace kun
