// Parts of a configuration that architectures spell alike.
#pragma once

#include <optional>

#include "checkpoint/config.h"
#include "models/pre_norm_shape.h"

namespace kun {

constexpr int kSizeMax = 1 << 24;  // any one dimension; far above every released model

// rope_scaling: linear, llama3, yarn, or none.
nn::RopeScaling read_rope_scaling(ConfigReader& read, int context_length_max);

// The gate and its experts, for `hidden` wide layers; nothing when the model has none.
std::optional<ExpertLayers> read_expert_layers(ConfigReader& read, std::int64_t hidden);

// Fails unless hidden_act is silu.
void require_silu(ConfigReader& read);

}  // namespace kun
