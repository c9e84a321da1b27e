#include "models/shape_reader.h"

#include <fmt/format.h>

namespace kun {
namespace {

constexpr int kExpertsMax = 65536;

// The names are those of DeepSeek's configuration classes.
void read_gate(ConfigReader& read, nn::ExpertsShape& shape) {
  std::string score;
  std::string method;
  read.read_or("scoring_func", score, "softmax");
  read.read_or("topk_method", method, "greedy");
  read.read_or("norm_topk_prob", shape.normalize, false);
  read.read_or("routed_scaling_factor", shape.scale, 1.0F);
  if (score == "softmax") {
    shape.score = GateScore::kSoftmax;
  } else if (score == "sigmoid") {
    shape.score = GateScore::kSigmoid;
  } else if (score == "sqrtsoftplus") {
    shape.score = GateScore::kSqrtSoftplus;
  } else {
    read.fail("scoring_func '" + score +
              "' is not supported; softmax, sigmoid and sqrtsoftplus are");
  }
  if (method == "greedy") return;
  if (method != "group_limited_greedy" && method != "noaux_tc") {
    read.fail("topk_method '" + method +
              "' is not supported; greedy, group_limited_greedy and noaux_tc are");
  }
  shape.has_bias = method == "noaux_tc";
  shape.group_score = shape.has_bias ? GroupScore::kTopTwo : GroupScore::kMax;
  read.read_or("n_group", shape.group_count, 1, 1, kExpertsMax);
  read.read_or("topk_group", shape.kept_group_count, shape.group_count, 1, kExpertsMax);
}

void check_groups(ConfigReader& read, const nn::ExpertsShape& shape) {
  if (shape.expert_count % shape.group_count != 0) {
    return read.fail("n_routed_experts must be a multiple of n_group");
  }
  if (shape.kept_group_count > shape.group_count) {
    return read.fail("topk_group must not be above n_group");
  }
  const int group_size = shape.expert_count / shape.group_count;
  if (shape.group_score == GroupScore::kTopTwo && shape.group_count > 1 && group_size < 2) {
    return read.fail("n_group leaves less than the two experts a group that it is judged by");
  }
  const int kept = group_size * shape.kept_group_count;
  if (shape.chosen_count > kept) {
    read.fail("num_experts_per_tok must not be above the number of experts to choose from");
  }
}

}  // namespace

void read_size(ConfigReader& read, std::string_view key, std::int64_t& value, int min, int max) {
  int number = static_cast<int>(value);
  read.read(key, number, min, max);
  value = number;
}

void read_decoder_shape(ConfigReader& read, DecoderShape& shape) {
  read.read("num_hidden_layers", shape.layer_count, 1, 4096);
  read_size(read, "intermediate_size", shape.inner);
  read.read("vocab_size", shape.vocabulary, 1, kSizeMax);
  read.read_or("max_position_embeddings", shape.context_length_max, 2048, 1, 1 << 30);
  read.read_or("tie_word_embeddings", shape.tied_embeddings, false);
  require_silu(read);
  read.read_or("rope_theta", shape.rope.theta, 10000.0, 1.0, 1e12);
  shape.rope.scaling = read_rope_scaling(read, shape.rope.theta, shape.context_length_max);
}

nn::RopeScaling read_rope_scaling(ConfigReader& read, double theta, int context_length_max) {
  nn::RopeScaling scaling;
  std::string kind;
  read.read_or("rope_scaling.rope_type", kind, "default");
  if (kind == "default") return scaling;
  read.read("rope_scaling.factor", scaling.factor, 1.0, 1e6);
  if (kind == "linear") {
    scaling.kind = nn::RopeScaling::Kind::kLinear;
    return scaling;
  }
  read.read_or("rope_scaling.original_max_position_embeddings", scaling.original_context,
               static_cast<double>(context_length_max), 1.0, 1e9);
  if (kind == "llama3") {
    scaling.kind = nn::RopeScaling::Kind::kLlama3;
    read.read("rope_scaling.low_freq_factor", scaling.low_frequency_factor, 1e-3, 1e6);
    read.read("rope_scaling.high_freq_factor", scaling.high_frequency_factor, 1e-3, 1e6);
    if (scaling.high_frequency_factor < scaling.low_frequency_factor) {
      read.fail("rope_scaling.high_freq_factor must not be below low_freq_factor");
    }
  } else if (kind == "yarn") {
    scaling.kind = nn::RopeScaling::Kind::kYarn;
    // YaRN divides by the logarithm of the base: with 1 all pairs turn alike, and none is between.
    if (!(theta > 1.0)) read.fail("rope_scaling of type 'yarn' needs a rope_theta above 1");
    read.read_or("rope_scaling.beta_fast", scaling.beta_fast, 32.0, 1e-3, 1e6);
    read.read_or("rope_scaling.beta_slow", scaling.beta_slow, 1.0, 1e-3, 1e6);
    read.read_or("rope_scaling.attention_factor", scaling.attention_factor, 1.0, 1e-3, 1e3);
  } else {
    read.fail("rope_scaling of type '" + kind + "' is not supported; linear, llama3 and yarn are");
  }
  return scaling;
}

std::optional<ExpertLayers> read_expert_layers(ConfigReader& read, std::int64_t hidden) {
  if (!read.has("n_routed_experts")) return std::nullopt;
  ExpertLayers layers;
  nn::ExpertsShape& shape = layers.shape;
  int inner = 0;
  int shared_count = 0;
  read.read("n_routed_experts", shape.expert_count, 1, kExpertsMax);
  read.read("num_experts_per_tok", shape.chosen_count, 1, shape.expert_count);
  read.read("moe_intermediate_size", inner, 1, kSizeMax);
  read.read_or("n_shared_experts", shared_count, 0, 0, 1024);
  read.read_or("first_k_dense_replace", layers.first, 0, 0, 1 << 16);
  read.read_or("moe_layer_freq", layers.every, 1, 1, 1 << 16);
  shape.hidden = hidden;
  shape.inner = inner;
  shape.shared_inner = std::int64_t{inner} * shared_count;
  read_gate(read, shape);
  if (!read.status().ok()) return layers;
  check_groups(read, shape);
  return layers;
}

void require_silu(ConfigReader& read) {
  std::string activation;
  read.read_or("hidden_act", activation, "silu");
  if (activation != "silu") {
    read.fail("hidden_act '" + activation + "' is not supported; silu is");
  }
}

Status require_float_cache(const Config& config, DType cache_dtype) {
  if (cache_dtype == DType::kF32 || cache_dtype == DType::kBF16) return {};
  return unimplemented(
      fmt::format("a cache of {} is for keys and values of heads, and {} keeps latent vectors, "
                  "which every head "
                  "reads: serve it with --kv-cache-dtype auto",
                  name(cache_dtype), config.architecture()));
}

}  // namespace kun
