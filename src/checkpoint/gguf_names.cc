// The correspondence of llama.cpp's converter for llama, qwen2 and qwen3 (MODEL_TENSORS in
// gguf-py/gguf/constants.py and tensor_mapping.py).
#include "checkpoint/gguf_names.h"

#include <fmt/format.h>

#include <algorithm>

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
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

template <std::size_t count>
std::string_view translate(const NamePair (&pairs)[count], std::string_view gguf) {
  for (const NamePair& pair : pairs) {
    if (pair.gguf == gguf) return pair.hugging_face;
  }
  return "";
}

bool is_layer_number(std::string_view text) {
  const bool digits =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const bool plain = text.size() == 1 || (text.size() > 1 && text.front() != '0');
  return digits && plain;
}

}  // namespace

std::string hugging_face_name(std::string_view gguf_name) {
  const std::string own(gguf_name);
  const std::size_t dot = gguf_name.rfind('.');
  if (dot == std::string_view::npos) return own;
  const std::string_view suffix = gguf_name.substr(dot);
  std::string_view stem = gguf_name.substr(0, dot);
  constexpr std::string_view kLayerPrefix = "blk.";
  if (!stem.starts_with(kLayerPrefix)) {
    const std::string_view found = translate(kOutside, stem);
    return found.empty() ? own : fmt::format("{}{}", found, suffix);
  }
  stem.remove_prefix(kLayerPrefix.size());
  const std::size_t end = stem.find('.');
  if (end == std::string_view::npos || !is_layer_number(stem.substr(0, end))) return own;
  const std::string_view found = translate(kInLayer, stem.substr(end + 1));
  if (found.empty()) return own;
  return fmt::format("model.layers.{}.{}{}", stem.substr(0, end), found, suffix);
}

}  // namespace kun
