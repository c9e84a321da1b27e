// Reads the configuration that Llama, Qwen2, Qwen3 and DeepSeek-MoE share.
#include "models/dense_decoder.h"
#include "models/shape_reader.h"

namespace kun {
namespace {

nn::AttentionShape read_attention_shape(ConfigReader& read) {
  nn::AttentionShape shape;
  int hidden = 0;
  int heads = 1;
  int kv_heads = 1;
  int head_width = 2;
  read.read("hidden_size", hidden, 1, kSizeMax);
  read.read("num_attention_heads", heads, 1, 65536);
  read.read_or("num_key_value_heads", kv_heads, heads, 1, 65536);
  read.read_or("head_dim", head_width, hidden / heads, 2, 65536);
  read.read("rms_norm_eps", shape.norm_epsilon, 0.0F, 1.0F);
  if (heads % kv_heads != 0) {
    read.fail("num_attention_heads must be a multiple of num_key_value_heads");
  }
  if (head_width % 2 != 0) read.fail("head_dim must be even");
  shape.hidden = hidden;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_width = head_width;
  return shape;
}

}  // namespace

Result<DenseDecoderShape> read_dense_decoder_shape(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config());
  DenseDecoderShape shape;
  int inner = 0;
  shape.attention = read_attention_shape(read);
  read.read("num_hidden_layers", shape.layer_count, 1, 4096);
  read.read("intermediate_size", inner, 1, kSizeMax);
  read.read("vocab_size", shape.vocabulary, 1, kSizeMax);
  read.read_or("max_position_embeddings", shape.context_length_max, 2048, 1, 1 << 30);
  read.read_or("tie_word_embeddings", shape.tied_embeddings, false);
  require_silu(read);
  bool sliding_window = false;
  read.read_or("use_sliding_window", sliding_window, false);
  if (sliding_window) read.fail("use_sliding_window is not supported");
  shape.inner = inner;
  shape.rope.width = static_cast<int>(shape.attention.head_width);
  shape.rope.layout = checkpoint.rope_interleaved() ? RopeLayout::kInterleaved : RopeLayout::kHalf;
  read.read_or("rope_theta", shape.rope.theta, 10000.0, 1.0, 1e12);
  shape.rope.scaling = read_rope_scaling(read, shape.context_length_max);
  RETURN_IF_ERROR(read.status());
  return shape;
}

}  // namespace kun
