// Keys and their meaning: gguf-py/gguf/constants.py and src/llama-model.cpp of ggml-org/llama.cpp.
#include "checkpoint/gguf_config.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/show_name.h"

namespace kun {
namespace {

enum class Need { kRequired, kOptional };

struct Architecture {
  std::string_view gguf;
  std::string_view class_name;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},
    {"qwen3", "Qwen3ForCausalLM"},
    {"deepseek", "DeepseekForCausalLM"},
    {"deepseek2", "DeepseekV2ForCausalLM"},  // or V3: the gate decides, see translate_experts
    {"deepseek32", "DeepseekV32ForCausalLM"},
    {"deepseek4", "DeepseekV4ForCausalLM"},
};

// Reads metadata into a Config; the first problem sticks, as in ConfigReader.
class Translator {
 public:
  Translator(const GgufFile& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)), config_(file.name()) {}

  // A whole number, or an array that says the same for every layer. Returns what it set.
  std::optional<std::int64_t> whole(std::string_view from, std::string_view to, Need need);
  std::optional<double> real(std::string_view from, std::string_view to, Need need);
  void truth(std::string_view from, std::string_view to);
  // The first of a list of numbers.
  void first_real(std::string_view from, std::string_view to);
  void erase(std::string_view key) { config_.erase(key); }
  // A number per layer, or one for all.
  void whole_list(std::string_view from, std::string_view to, std::int64_t size);

  void set(std::string_view key, ConfigValue value) {
    config_.set(std::string(key), std::move(value));
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  std::string full(std::string_view key) const { return fmt::format("{}{}", prefix_, key); }
  std::string error(std::string_view key, std::string_view what) const {
    return fmt::format("{}: metadata key '{}' {}", file_.name(), full(key), what);
  }

  Result<Config> finish() && {
    if (!status_.ok()) return status_;
    RETURN_IF_ERROR(config_.normalize_rope());
    return std::move(config_);
  }

 private:
  const GgufValue* find(std::string_view key, Need need);

  const GgufFile& file_;
  std::string prefix_;
  Config config_;
  Status status_;
};

const GgufValue* Translator::find(std::string_view key, Need need) {
  const GgufValue* value = file_.find(full(key));
  if (value == nullptr && need == Need::kRequired) fail(data_loss(error(key, "is missing")));
  return value;
}

std::optional<std::int64_t> Translator::whole(std::string_view from, std::string_view to,
                                              Need need) {
  const GgufValue* value = find(from, need);
  if (value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> first = value->count == 0 ? std::nullopt : value->int_at(0);
  if (!first) {
    fail(data_loss(error(from, "must be a whole number")));
    return std::nullopt;
  }
  for (std::uint64_t i = 1; i < value->count; ++i) {
    if (value->int_at(i) == first) continue;
    fail(unimplemented(error(from, "differs between layers, which is not supported")));
    return std::nullopt;
  }
  set(to, *first);
  return first;
}

std::optional<double> Translator::real(std::string_view from, std::string_view to, Need need) {
  const GgufValue* value = find(from, need);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = value->is_array ? std::nullopt : value->float_at(0);
  if (!number || !std::isfinite(*number)) {
    fail(data_loss(error(from, "must be a finite number")));
    return std::nullopt;
  }
  set(to, *number);
  return number;
}

void Translator::truth(std::string_view from, std::string_view to) {
  const GgufValue* value = find(from, Need::kOptional);
  if (value == nullptr) return;
  const std::optional<bool> flag = value->is_array ? std::nullopt : value->bool_at(0);
  if (!flag) return fail(data_loss(error(from, "must be true or false")));
  set(to, *flag);
}

void Translator::first_real(std::string_view from, std::string_view to) {
  const GgufValue* value = find(from, Need::kOptional);
  if (value == nullptr || value->count == 0) return;
  const std::optional<double> number = value->float_at(0);
  if (!number || !std::isfinite(*number)) {
    return fail(data_loss(error(from, "must hold finite numbers")));
  }
  set(to, *number);
}

void Translator::whole_list(std::string_view from, std::string_view to, std::int64_t size) {
  const GgufValue* value = find(from, Need::kRequired);
  if (value == nullptr) return;
  const bool one = value->count == 1;
  if (!one && static_cast<std::int64_t>(value->count) < size) {
    return fail(data_loss(error(from, "has fewer entries than there are layers")));
  }
  std::vector<std::int64_t> list;
  for (std::int64_t i = 0; i < size; ++i) {
    const auto number = value->int_at(one ? 0 : static_cast<std::uint64_t>(i));
    if (!number) return fail(data_loss(error(from, "must hold whole numbers")));
    list.push_back(*number);
  }
  set(to, std::move(list));
}

void translate_attention(Translator& in) {
  const auto hidden = in.whole("embedding_length", "hidden_size", Need::kRequired);
  const auto heads = in.whole("attention.head_count", "num_attention_heads", Need::kRequired);
  if (!hidden || !heads) return;
  if (*hidden < 1 || *heads < 1) {
    return in.fail(data_loss(in.error("attention.head_count", "must be positive")));
  }
  in.set("num_key_value_heads", *heads);
  in.whole("attention.head_count_kv", "num_key_value_heads", Need::kOptional);
  const std::int64_t head_dim =
      in.whole("attention.key_length", "head_dim", Need::kOptional).value_or(*hidden / *heads);
  in.set("head_dim", head_dim);
  // The same three numbers in one: nothing here computes heads that differ in them.
  const std::array<std::string_view, 2> same{"attention.value_length", "rope.dimension_count"};
  for (const std::string_view key : same) {
    const auto value = in.whole(key, key, Need::kOptional);
    if (!value || *value == head_dim) continue;
    in.fail(unimplemented(
        in.error(key, fmt::format("is {} where heads have {} values, which is not supported",
                                  *value, head_dim))));
  }
}

void translate_rope(Translator& in, const GgufFile& file) {
  in.set("rope_theta", 10000.0);
  in.real("rope.freq_base", "rope_theta", Need::kOptional);
  auto factor = in.real("rope.scaling.factor", "rope_scaling.factor", Need::kOptional);
  if (!factor) factor = in.real("rope.scale_linear", "rope_scaling.factor", Need::kOptional);
  in.whole("rope.scaling.original_context_length", "rope_scaling.original_max_position_embeddings",
           Need::kOptional);
  in.real("rope.scaling.attn_factor", "rope_scaling.attn_factor", Need::kOptional);
  in.real("rope.scaling.yarn_attn_factor", "rope_scaling.attn_factor", Need::kOptional);
  in.real("rope.scaling.yarn_beta_fast", "rope_scaling.beta_fast", Need::kOptional);
  in.real("rope.scaling.yarn_beta_slow", "rope_scaling.beta_slow", Need::kOptional);

  const std::string type_key = in.full("rope.scaling.type");
  const std::optional<std::string_view> type = file.find_string(type_key);
  if (!type && file.find(type_key) != nullptr) {
    return in.fail(data_loss(in.error("rope.scaling.type", "must be a string")));
  }
  // A factor without a type means linear, a factor of 0 or 1 no scaling at all.
  const bool scales = factor && *factor != 0 && *factor != 1;
  const std::string_view name = scales ? type.value_or("linear") : "default";
  in.set("rope_scaling.rope_type", std::string(name == "none" ? "default" : name));
}

// Latent attention: heads have two parts, and the cache's own sizes stand where others have theirs.
void translate_latent_attention(Translator& in) {
  in.whole("embedding_length", "hidden_size", Need::kRequired);
  const auto heads = in.whole("attention.head_count", "num_attention_heads", Need::kRequired);
  if (heads) in.set("num_key_value_heads", *heads);
  const auto query_rank = in.whole("attention.q_lora_rank", "q_lora_rank", Need::kOptional);
  if (query_rank.value_or(0) == 0) in.erase("q_lora_rank");
  in.whole("attention.kv_lora_rank", "kv_lora_rank", Need::kRequired);
  const auto rope = in.whole("rope.dimension_count", "qk_rope_head_dim", Need::kRequired);
  // Files from before the split of kv_b have the sizes of whole heads under the plain keys.
  auto key = in.whole("attention.key_length_mla", "key_length", Need::kOptional);
  if (!key) key = in.whole("attention.key_length", "key_length", Need::kRequired);
  auto value = in.whole("attention.value_length_mla", "v_head_dim", Need::kOptional);
  if (!value) in.whole("attention.value_length", "v_head_dim", Need::kRequired);
  if (!key || !rope) return;
  if (*key <= *rope) {
    return in.fail(data_loss(in.error("attention.key_length_mla", "must be above the RoPE width")));
  }
  in.set("qk_nope_head_dim", *key - *rope);
}

// The gate and its experts. deepseek2 stands for V2 and V3, which differ in the gate.
void translate_experts(Translator& in, std::string_view name) {
  const auto experts = in.whole("expert_count", "n_routed_experts", Need::kRequired);
  in.whole("expert_used_count", "num_experts_per_tok", Need::kRequired);
  in.set("n_shared_experts", std::int64_t{0});
  in.whole("expert_shared_count", "n_shared_experts", Need::kOptional);
  in.whole("expert_feed_forward_length", "moe_intermediate_size", Need::kRequired);
  in.set("first_k_dense_replace", std::int64_t{0});
  in.whole("leading_dense_block_count", "first_k_dense_replace", Need::kOptional);
  in.set("routed_scaling_factor", 1.0);
  in.real("expert_weights_scale", "routed_scaling_factor", Need::kOptional);
  in.set("norm_topk_prob", false);
  in.truth("expert_weights_norm", "norm_topk_prob");
  const auto groups = in.whole("expert_group_count", "n_group", Need::kOptional);
  in.whole("expert_group_used_count", "topk_group", Need::kOptional);
  if (!experts) return;
  const std::int64_t gate = in.whole("expert_gating_func", "gate", Need::kOptional).value_or(1);
  const std::array<std::string_view, 5> scores{"", "softmax", "sigmoid", "", "sqrtsoftplus"};
  if (gate < 1 || gate >= std::ssize(scores) || scores[static_cast<std::size_t>(gate)].empty()) {
    return in.fail(unimplemented(in.error("expert_gating_func", "names an unknown gate")));
  }
  in.set("scoring_func", std::string(scores[static_cast<std::size_t>(gate)]));
  const bool grouped = groups.value_or(1) > 1;
  in.set("topk_method", std::string(gate != 1 ? "noaux_tc"
                                    : grouped ? "group_limited_greedy"
                                              : "greedy"));
  if (name == "deepseek2" && gate == 2) {
    in.set("architectures", std::vector<std::string>{"DeepseekV3ForCausalLM"});
    in.set("model_type", std::string("deepseek_v3"));
  }
}

// DeepSeek scales cosine and sine by 1, and the scores by what this key says: 0.1 times
// mscale_all_dim. llama.cpp's own factor on cosine and sine is cancelled in its graph.
void translate_log_multiplier(Translator& in) {
  const auto multiplier =
      in.real("rope.scaling.yarn_log_multiplier", "log_multiplier", Need::kOptional);
  in.set("rope_scaling.attention_factor", 1.0);
  if (!multiplier) return;
  in.set("rope_scaling.mscale", *multiplier / 0.1);
  in.set("rope_scaling.mscale_all_dim", *multiplier / 0.1);
}

void translate_indexer(Translator& in) {
  in.whole("attention.indexer.head_count", "index_n_heads", Need::kRequired);
  in.whole("attention.indexer.key_length", "index_head_dim", Need::kRequired);
  in.whole("attention.indexer.top_k", "index_topk", Need::kRequired);
}

void translate_v4(Translator& in, std::int64_t layers) {
  in.whole("embedding_length", "hidden_size", Need::kRequired);
  in.whole("attention.head_count", "num_attention_heads", Need::kRequired);
  in.set("num_key_value_heads", std::int64_t{1});
  in.whole("attention.key_length", "head_dim", Need::kRequired);
  in.whole("rope.dimension_count", "qk_rope_head_dim", Need::kRequired);
  in.whole("attention.q_lora_rank", "q_lora_rank", Need::kRequired);
  in.whole("attention.output_lora_rank", "o_lora_rank", Need::kRequired);
  in.whole("attention.output_group_count", "o_groups", Need::kRequired);
  in.whole("attention.sliding_window", "sliding_window", Need::kRequired);
  in.whole_list("attention.compress_ratios", "compress_ratios", layers);
  in.real("attention.compress_rope_freq_base", "compress_rope_theta", Need::kRequired);
  in.whole("hyper_connection.count", "hc_mult", Need::kRequired);
  in.whole("hyper_connection.sinkhorn_iterations", "hc_sinkhorn_iters", Need::kRequired);
  in.real("hyper_connection.epsilon", "hc_eps", Need::kRequired);
  in.whole("hash_layer_count", "num_hash_layers", Need::kRequired);
  in.first_real("swiglu_clamp_exp", "swiglu_limit");
}

constexpr std::int64_t kLayersMax = 4096;  // as the models' own readers have it

void translate_layers(Translator& in, std::string_view name) {
  const auto blocks = in.whole("block_count", "num_hidden_layers", Need::kRequired);
  if (!name.starts_with("deepseek") || !blocks) return;
  // The next-token module counts as a layer there.
  const auto extra = in.whole("nextn_predict_layers", "num_nextn_predict_layers", Need::kOptional);
  const std::int64_t next_count = extra.value_or(0);
  if (*blocks < 1 || *blocks > kLayersMax || next_count < 0 || next_count >= *blocks) {
    in.fail(data_loss(in.error("block_count", "is no number of layers")));
    return;
  }
  if (extra) in.set("num_hidden_layers", *blocks - next_count);
  if (name == "deepseek4") return translate_v4(in, *blocks - next_count);
}

void translate_vocabulary(Translator& in, const GgufFile& file, const GgufTensorMap& tensors) {
  auto embedding = tensors.find("model.embed_tokens.weight");
  if (embedding == tensors.end()) embedding = tensors.find("embed.weight");
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  if (embedding != tensors.end()) {
    in.set("vocab_size", embedding->second->dims[1]);
  } else if (!in.whole("vocab_size", "vocab_size", Need::kOptional) && tokens != nullptr) {
    in.set("vocab_size", static_cast<std::int64_t>(tokens->count));
  }
  const std::array<std::pair<std::string_view, std::string_view>, 3> ids{
      {{"tokenizer.ggml.bos_token_id", "bos_token_id"},
       {"tokenizer.ggml.eos_token_id", "eos_token_id"},
       {"tokenizer.ggml.padding_token_id", "pad_token_id"}}};
  for (const auto& [from, to] : ids) {
    if (const auto id = file.find_int(from)) in.set(to, *id);
  }
}

}  // namespace

Result<Config> config_of_gguf(const GgufFile& file, const GgufTensorMap& tensors) {
  const auto name = file.find_string("general.architecture");
  if (!name) {
    return data_loss(
        fmt::format("{}: metadata key 'general.architecture' is missing", file.name()));
  }
  const Architecture* architecture = nullptr;
  for (const Architecture& known : kArchitectures) {
    if (known.gguf == *name) architecture = &known;
  }
  if (architecture == nullptr) {
    return unimplemented(fmt::format(
        "{}: GGUF models of architecture {} are not supported, only llama, qwen2, qwen3 and "
        "deepseek, deepseek2, deepseek32, deepseek4 are",
        file.name(), show_name(*name)));
  }
  Translator in(file, fmt::format("{}.", *name));
  in.set("model_type", std::string(*name));
  in.set("architectures", std::vector<std::string>{std::string(architecture->class_name)});
  in.set("hidden_act", std::string("silu"));
  in.set("tie_word_embeddings",
         tensors.count("lm_head.weight") + tensors.count("head.weight") == 0);
  const auto has_bias = [&](const char* part) {
    return tensors.count(fmt::format("model.layers.0.{}.bias", part)) != 0;
  };
  in.set("attention_bias", has_bias("self_attn.q_proj"));
  in.set("mlp_bias", has_bias("mlp.gate_proj"));
  in.whole("context_length", "max_position_embeddings", Need::kRequired);
  translate_layers(in, *name);
  const bool experts = name->starts_with("deepseek");
  const bool latent = *name == "deepseek2" || *name == "deepseek32";
  in.whole("feed_forward_length", "intermediate_size", Need::kRequired);
  in.real("attention.layer_norm_rms_epsilon", "rms_norm_eps", Need::kRequired);
  if (latent) {
    translate_latent_attention(in);
  } else if (*name != "deepseek4") {
    translate_attention(in);
  }
  translate_rope(in, file);
  if (latent || *name == "deepseek4") translate_log_multiplier(in);
  if (*name == "deepseek32" || *name == "deepseek4") translate_indexer(in);
  if (experts) translate_experts(in, *name);
  translate_vocabulary(in, file, tensors);
  if (!experts && in.whole("expert_count", "num_local_experts", Need::kOptional).value_or(0) > 0) {
    in.fail(unimplemented(
        in.error("expert_count", "announces experts, which this architecture does not have")));
  }
  return std::move(in).finish();
}

Result<Config> generation_config_of_gguf(const GgufFile& file) {
  Translator in(file, "");
  in.real("general.sampling.temp", "temperature", Need::kOptional);
  in.whole("general.sampling.top_k", "top_k", Need::kOptional);
  in.real("general.sampling.top_p", "top_p", Need::kOptional);
  in.real("general.sampling.min_p", "min_p", Need::kOptional);
  in.real("general.sampling.penalty_repeat", "repetition_penalty", Need::kOptional);
  // Besides the end of a text, the end of a turn and of a message end an answer.
  std::vector<std::int64_t> ends;
  for (const char* name : {"eos", "eot", "eom"}) {
    const auto id = file.find_int(fmt::format("tokenizer.ggml.{}_token_id", name));
    if (id) ends.push_back(*id);
  }
  if (!ends.empty()) in.set("eos_token_id", std::move(ends));
  return std::move(in).finish();
}

}  // namespace kun
