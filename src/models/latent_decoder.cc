#include "models/latent_decoder.h"

#include <cmath>
#include <utility>

#include "models/shape_reader.h"

namespace kun {
namespace {

// DeepSeek's YaRN also sharpens the scores, by the square of 0.1 mscale_all_dim ln(factor) + 1
// (DeepSeek-V3, inference/model.py); Hugging Face's own deepseek_v2 class leaves that out.
double score_factor(ConfigReader& read, const nn::RopeScaling& scaling) {
  if (scaling.kind != nn::RopeScaling::Kind::kYarn || scaling.factor <= 1.0) return 1.0;
  double all_dim = 0.0;
  read.read_or("rope_scaling.mscale_all_dim", all_dim, 0.0, 0.0, 100.0);
  const double multiplier = 0.1 * all_dim * std::log(scaling.factor) + 1.0;
  return multiplier * multiplier;
}

nn::LatentAttentionShape read_attention(ConfigReader& read) {
  nn::LatentAttentionShape shape;
  int hidden = 0;
  int heads = 0;
  int query_rank = 0;
  int latent = 0;
  int nope = 0;
  int rope = 0;
  int value = 0;
  read.read("hidden_size", hidden, 1, kSizeMax);
  read.read("num_attention_heads", heads, 1, 65536);
  read.read_or("q_lora_rank", query_rank, 0, 1, kSizeMax);
  read.read("kv_lora_rank", latent, 1, 65536);
  read.read("qk_nope_head_dim", nope, 1, 65536);
  read.read("qk_rope_head_dim", rope, 2, 65536);
  read.read("v_head_dim", value, 1, 65536);
  read.read("rms_norm_eps", shape.norm_epsilon, 0.0F, 1.0F);
  if (rope % 2 != 0) read.fail("qk_rope_head_dim must be even");
  if (latent % 2 != 0) read.fail("kv_lora_rank must be even");
  shape.hidden = hidden;
  shape.heads = heads;
  shape.query_rank = query_rank;
  shape.latent = latent;
  shape.nope = nope;
  shape.rope = rope;
  shape.value = value;
  return shape;
}

}  // namespace

Result<LatentDecoderShape> read_latent_decoder_shape(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config());
  LatentDecoderShape shape;
  int inner = 0;
  shape.attention = read_attention(read);
  read.read("num_hidden_layers", shape.layer_count, 1, 4096);
  read.read("intermediate_size", inner, 1, kSizeMax);
  read.read("vocab_size", shape.vocabulary, 1, kSizeMax);
  read.read_or("max_position_embeddings", shape.context_length_max, 2048, 1, 1 << 30);
  read.read_or("tie_word_embeddings", shape.tied_embeddings, false);
  require_silu(read);
  bool bias = false;
  read.read_or("attention_bias", bias, false);
  if (bias) read.fail("attention_bias is not supported with latent attention");
  shape.inner = inner;
  shape.rope.width = static_cast<int>(shape.attention.rope);
  shape.rope.layout = RopeLayout::kInterleaved;
  read.read_or("rope_theta", shape.rope.theta, 10000.0, 1.0, 1e12);
  shape.rope.scaling = read_rope_scaling(read, shape.context_length_max);
  const auto width = static_cast<double>(shape.attention.nope + shape.attention.rope);
  shape.attention.scale =
      static_cast<float>(score_factor(read, shape.rope.scaling) / std::sqrt(width));
  shape.experts = read_expert_layers(read, shape.attention.hidden);
  RETURN_IF_ERROR(read.status());
  return shape;
}

Result<std::unique_ptr<const Model>> load_latent_decoder(LatentDecoderShape shape,
                                                         const Checkpoint& checkpoint, Ops& ops,
                                                         const ModelOptions& options) {
  WeightLoader weights(checkpoint, ops, options.progress, options.cache);
  shape.attention.packed = options.cache_dtype;
  auto model = std::make_unique<PreNormDecoder<nn::LatentAttention>>(shape, nn::Loader(weights),
                                                                     options.cache_dtype);
  RETURN_IF_ERROR(weights.status());
  return std::unique_ptr<const Model>(std::move(model));
}

}  // namespace kun
