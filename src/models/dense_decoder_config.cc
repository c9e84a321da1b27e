// Reads the configuration that Llama, Qwen2, Qwen3 and DeepSeek-MoE share.
#include "models/dense_decoder.h"
#include "models/shape_reader.h"

namespace kun {
namespace {

nn::AttentionShape read_attention_shape(ConfigReader& read) {
  nn::AttentionShape shape;
  shape.heads = 1;
  read_size(read, "hidden_size", shape.hidden);
  read_size(read, "num_attention_heads", shape.heads, 1, 65536);
  const int heads = static_cast<int>(shape.heads);
  int kv_heads = 1;
  int head_width = 2;
  read.read_or("num_key_value_heads", kv_heads, heads, 1, 65536);
  read.read_or("head_dim", head_width, static_cast<int>(shape.hidden) / heads, 2, 65536);
  read.read("rms_norm_eps", shape.norm_epsilon, 0.0F, 1.0F);
  if (heads % kv_heads != 0) {
    read.fail("num_attention_heads must be a multiple of num_key_value_heads");
  }
  if (head_width % 2 != 0) read.fail("head_dim must be even");
  shape.kv_heads = kv_heads;
  shape.head_width = head_width;
  return shape;
}

}  // namespace

Result<DenseDecoderShape> read_dense_decoder_shape(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config());
  DenseDecoderShape shape;
  shape.attention = read_attention_shape(read);
  read_decoder_shape(read, shape);
  bool sliding_window = false;
  read.read_or("use_sliding_window", sliding_window, false);
  if (sliding_window) read.fail("use_sliding_window is not supported");
  shape.rope.width = static_cast<int>(shape.attention.head_width);
  shape.rope.layout = checkpoint.rope_interleaved() ? RopeLayout::kInterleaved : RopeLayout::kHalf;
  RETURN_IF_ERROR(read.status());
  return shape;
}

}  // namespace kun
