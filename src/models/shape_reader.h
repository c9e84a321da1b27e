// Parts of a configuration that architectures spell alike.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/config.h"
#include "models/pre_norm_shape.h"

namespace kun {

constexpr int kSizeMax = 1 << 24;  // any one dimension; far above every released model

// A dimension, in [min, max].
void read_size(ConfigReader& read, std::string_view key, std::int64_t& value, int min = 1,
               int max = kSizeMax);

// What pre-norm decoders spell alike: sizes, RoPE and its scaling, tying; not the experts. The
// width of RoPE and its layout are the architecture's to set.
void read_decoder_shape(ConfigReader& read, DecoderShape& shape);

// rope_scaling: linear, llama3, yarn, or none. `theta`: the base that frequencies are powers of.
nn::RopeScaling read_rope_scaling(ConfigReader& read, double theta, int context_length_max);

// The gate and its experts, for `hidden` wide layers; nothing when the model has none.
std::optional<ExpertLayers> read_expert_layers(ConfigReader& read, std::int64_t hidden);

// Fails unless hidden_act is silu.
void require_silu(ConfigReader& read);

// That a cache whose entries are not keys and values of heads holds floats.
Status require_float_cache(const Config& config, DType cache_dtype);

}  // namespace kun
