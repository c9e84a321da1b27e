// GGUF tensor names in Hugging Face's words.
#pragma once

#include <string>
#include <string_view>

namespace kun {

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight". Names without a counterpart
// ("rope_freqs.weight") come back as they are. The suffix (.weight, .bias, .scale) is kept.
std::string hugging_face_name(std::string_view gguf_name);

}  // namespace kun
