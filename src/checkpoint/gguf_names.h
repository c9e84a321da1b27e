// GGUF's names of tensors in Hugging Face's vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kun {

// "blk.0.attn_q.weight" -> "model.layers.0.self_attn.q_proj.weight". Names without a counterpart
// are returned as they are. `architecture` is the file's general.architecture: DeepSeek V4 has
// names of its own ("layers.0.attn.wq_a.weight").
std::string hugging_face_name(std::string_view gguf_name, std::string_view architecture = "");

// A name that may stand for one slice of a tensor of rank 3: "a.experts.7.up_proj.weight".
struct SliceName {
  std::int64_t index = 0;
  std::string stacked;       // "a.experts.up_proj.weight"
  std::string fused;         // "a.experts.gate_up_proj.weight"; empty when there is no such tensor
  bool second_half = false;  // of the fused tensor: up
};
std::optional<SliceName> split_slice_name(std::string_view name);

}  // namespace kun
