// The correspondence of llama.cpp's converter (MODEL_TENSORS in gguf-py/gguf/constants.py and
// tensor_mapping.py). Stacked tensors of experts and heads have no name in Hugging Face's files;
// they are called as a single one would be, without its number.
#include "checkpoint/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kun {
namespace {

struct NamePair {
  std::string_view gguf;
  std::string_view hugging_face;
};

constexpr NamePair kOutside[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr NamePair kInLayer[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"attn_k_b", "self_attn.k_b_proj"},
    {"attn_v_b", "self_attn.v_b_proj"},
    {"indexer.k_norm", "self_attn.indexer.k_norm"},
    {"indexer.proj", "self_attn.indexer.weights_proj"},
    {"indexer.attn_k", "self_attn.indexer.wk"},
    {"indexer.attn_q_b", "self_attn.indexer.wq_b"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_exps", "mlp.experts.gate_proj"},
    {"ffn_up_exps", "mlp.experts.up_proj"},
    {"ffn_gate_up_exps", "mlp.experts.gate_up_proj"},
    {"ffn_down_exps", "mlp.experts.down_proj"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
    {"nextn.eh_proj", "eh_proj"},
    {"nextn.embed_tokens", "embed_tokens"},
    {"nextn.enorm", "enorm"},
    {"nextn.hnorm", "hnorm"},
    {"nextn.shared_head_head", "shared_head.head"},
    {"nextn.shared_head_norm", "shared_head.norm"},
};

// Whole names, where not even the ends agree.
constexpr NamePair kWholeInLayer[] = {
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
};

// DeepSeek V4: whole names.
constexpr NamePair kOutsideV4[] = {
    {"token_embd.weight", "embed.weight"},     {"output_norm.weight", "norm.weight"},
    {"output.weight", "head.weight"},          {"output_hc_fn.weight", "hc_head_fn"},
    {"output_hc_base.weight", "hc_head_base"}, {"output_hc_scale.weight", "hc_head_scale"},
};

constexpr NamePair kInLayerV4[] = {
    {"attn_norm.weight", "attn_norm.weight"},
    {"ffn_norm.weight", "ffn_norm.weight"},
    {"attn_sinks.weight", "attn.attn_sink"},
    {"attn_q_a.weight", "attn.wq_a.weight"},
    {"attn_q_a_norm.weight", "attn.q_norm.weight"},
    {"attn_q_b.weight", "attn.wq_b.weight"},
    {"attn_kv.weight", "attn.wkv.weight"},
    {"attn_kv_a_norm.weight", "attn.kv_norm.weight"},
    {"attn_output_a.weight", "attn.wo_a.weight"},
    {"attn_output_b.weight", "attn.wo_b.weight"},
    {"attn_compressor_ape.weight", "attn.compressor.ape"},
    {"attn_compressor_kv.weight", "attn.compressor.wkv.weight"},
    {"attn_compressor_gate.weight", "attn.compressor.wgate.weight"},
    {"attn_compressor_norm.weight", "attn.compressor.norm.weight"},
    {"indexer.attn_q_b.weight", "attn.indexer.wq_b.weight"},
    {"indexer.proj.weight", "attn.indexer.weights_proj.weight"},
    {"indexer_compressor_ape.weight", "attn.indexer.compressor.ape"},
    {"indexer_compressor_kv.weight", "attn.indexer.compressor.wkv.weight"},
    {"indexer_compressor_gate.weight", "attn.indexer.compressor.wgate.weight"},
    {"indexer_compressor_norm.weight", "attn.indexer.compressor.norm.weight"},
    {"hc_attn_fn.weight", "hc_attn_fn"},
    {"hc_attn_base.weight", "hc_attn_base"},
    {"hc_attn_scale.weight", "hc_attn_scale"},
    {"hc_ffn_fn.weight", "hc_ffn_fn"},
    {"hc_ffn_base.weight", "hc_ffn_base"},
    {"hc_ffn_scale.weight", "hc_ffn_scale"},
    {"ffn_gate_inp.weight", "ffn.gate.weight"},
    {"exp_probs_b.bias", "ffn.gate.bias"},
    {"ffn_gate_tid2eid.weight", "ffn.gate.tid2eid"},
    {"ffn_gate_exps.weight", "ffn.experts.w1.weight"},
    {"ffn_up_exps.weight", "ffn.experts.w3.weight"},
    {"ffn_down_exps.weight", "ffn.experts.w2.weight"},
    {"ffn_gate_shexp.weight", "ffn.shared_experts.w1.weight"},
    {"ffn_up_shexp.weight", "ffn.shared_experts.w3.weight"},
    {"ffn_down_shexp.weight", "ffn.shared_experts.w2.weight"},
};

template <std::size_t count>
std::string_view translate(const NamePair (&pairs)[count], std::string_view gguf) {
  for (const NamePair& pair : pairs) {
    if (pair.gguf == gguf) return pair.hugging_face;
  }
  return "";
}

bool is_number(std::string_view text) {
  const bool digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const bool plain = text.size() == 1 || (text.size() > 1 && text.front() != '0');
  return digits && plain && text.size() <= 9;
}

// "7.rest" of "blk.7.rest" in two; nothing when the name is not of a layer.
struct LayerName {
  std::string_view number;
  std::string_view rest;
};
std::optional<LayerName> split_layer_name(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const std::size_t end = name.find('.');
  if (end == std::string_view::npos || !is_number(name.substr(0, end))) return std::nullopt;
  return LayerName{name.substr(0, end), name.substr(end + 1)};
}

// Older files have a tensor per expert: "ffn_up.7" for "mlp.experts.7.up_proj".
std::string single_expert(std::string_view stem) {
  const std::size_t dot = stem.rfind('.');
  if (dot == std::string_view::npos || !is_number(stem.substr(dot + 1))) return "";
  const std::string_view kind = stem.substr(0, dot);
  for (const char* part : {"gate", "up", "down"}) {
    if (kind != fmt::format("ffn_{}", part)) continue;
    return fmt::format("mlp.experts.{}.{}_proj", stem.substr(dot + 1), part);
  }
  return "";
}

std::string name_in_v4(std::string_view gguf_name) {
  // NVFP4's second scale goes by its weight's name.
  constexpr std::string_view kScale = ".scale";
  constexpr std::string_view kWeight = ".weight";
  if (gguf_name.ends_with(kScale)) {
    const std::string_view stem = gguf_name.substr(0, gguf_name.size() - kScale.size());
    std::string weight = name_in_v4(fmt::format("{}{}", stem, kWeight));
    const bool known = weight.ends_with(kWeight) && !weight.starts_with(stem);
    return known ? weight.replace(weight.size() - kWeight.size(), kWeight.size(), kScale)
                 : std::string(gguf_name);
  }
  const std::optional<LayerName> layer = split_layer_name(gguf_name);
  const std::string_view found =
      layer ? translate(kInLayerV4, layer->rest) : translate(kOutsideV4, gguf_name);
  if (found.empty()) return std::string(gguf_name);
  return layer ? fmt::format("layers.{}.{}", layer->number, found) : std::string(found);
}

}  // namespace

std::string hugging_face_name(std::string_view gguf_name, std::string_view architecture) {
  if (architecture == "deepseek4") return name_in_v4(gguf_name);
  const std::string own(gguf_name);
  const std::optional<LayerName> layer = split_layer_name(gguf_name);
  const std::string_view rest = layer ? layer->rest : gguf_name;
  const std::size_t dot = rest.rfind('.');
  if (dot == std::string_view::npos) return own;
  const std::string_view stem = rest.substr(0, dot);
  const std::string_view suffix = rest.substr(dot);
  if (!layer) {
    const std::string_view found = translate(kOutside, stem);
    return found.empty() ? own : fmt::format("{}{}", found, suffix);
  }
  if (const std::string_view whole = translate(kWholeInLayer, rest); !whole.empty()) {
    return fmt::format("model.layers.{}.{}", layer->number, whole);
  }
  std::string found(translate(kInLayer, stem));
  if (found.empty()) found = single_expert(stem);
  if (found.empty()) return own;
  return fmt::format("model.layers.{}.{}{}", layer->number, found, suffix);
}

std::optional<SliceName> split_slice_name(std::string_view name) {
  // The last number in the name, with dots on both sides.
  std::size_t end = name.size();
  while ((end = name.rfind('.', end - 1)) != std::string_view::npos && end > 0) {
    const std::size_t dot = name.rfind('.', end - 1);
    if (dot == std::string_view::npos) return std::nullopt;
    const std::string_view number = name.substr(dot + 1, end - dot - 1);
    if (!is_number(number)) continue;
    SliceName slice;
    std::from_chars(number.data(), number.data() + number.size(), slice.index);
    slice.stacked = fmt::format("{}{}", name.substr(0, dot), name.substr(end));
    const std::string_view part = name.substr(end);
    slice.second_half = part == ".up_proj.weight";
    if (slice.second_half || part == ".gate_proj.weight") {
      slice.fused = fmt::format("{}.gate_up_proj.weight", name.substr(0, dot));
    }
    return slice;
  }
  return std::nullopt;
}

}  // namespace kun
