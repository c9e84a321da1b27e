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
};

// Reads metadata into a Config; the first problem sticks, as in ConfigReader.
class Translator {
 public:
  Translator(const GgufFile& file, std::string prefix)
      : file_(file), prefix_(std::move(prefix)), config_(file.name()) {}

  // A whole number, or an array that says the same for every layer. Returns what it set.
  std::optional<std::int64_t> whole(std::string_view from, std::string_view to, Need need);
  std::optional<double> real(std::string_view from, std::string_view to, Need need);

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

void translate_vocabulary(Translator& in, const GgufFile& file, const GgufTensorMap& tensors) {
  const auto embedding = tensors.find("model.embed_tokens.weight");
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
        "{}: GGUF models of architecture {} are not supported, only llama, qwen2 and qwen3 are",
        file.name(), show_name(*name)));
  }
  Translator in(file, fmt::format("{}.", *name));
  in.set("model_type", std::string(*name));
  in.set("architectures", std::vector<std::string>{std::string(architecture->class_name)});
  in.set("hidden_act", std::string("silu"));
  in.set("tie_word_embeddings", tensors.count("lm_head.weight") == 0);
  const auto has_bias = [&](const char* part) {
    return tensors.count(fmt::format("model.layers.0.{}.bias", part)) != 0;
  };
  in.set("attention_bias", has_bias("self_attn.q_proj"));
  in.set("mlp_bias", has_bias("mlp.gate_proj"));
  in.whole("context_length", "max_position_embeddings", Need::kRequired);
  in.whole("block_count", "num_hidden_layers", Need::kRequired);
  in.whole("feed_forward_length", "intermediate_size", Need::kRequired);
  in.real("attention.layer_norm_rms_epsilon", "rms_norm_eps", Need::kRequired);
  translate_attention(in);
  translate_rope(in, file);
  translate_vocabulary(in, file, tensors);
  const auto experts = in.whole("expert_count", "num_local_experts", Need::kOptional);
  if (experts.value_or(0) > 0) {
    in.fail(unimplemented(in.error("expert_count", "announces experts, which are not supported")));
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
