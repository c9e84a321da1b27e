#include "models/latent_decoder.h"

#include <cmath>
#include <utility>

#include "models/factories.h"
#include "models/next_token_decoder.h"
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
  read_size(read, "hidden_size", shape.hidden);
  read_size(read, "num_attention_heads", shape.heads, 1, 65536);
  if (read.has("q_lora_rank")) read_size(read, "q_lora_rank", shape.query_rank);
  read_size(read, "kv_lora_rank", shape.latent, 1, 65536);
  read_size(read, "qk_nope_head_dim", shape.nope, 1, 65536);
  read_size(read, "qk_rope_head_dim", shape.rope, 2, 65536);
  read_size(read, "v_head_dim", shape.value, 1, 65536);
  read.read("rms_norm_eps", shape.norm_epsilon, 0.0F, 1.0F);
  if (shape.rope % 2 != 0) read.fail("qk_rope_head_dim must be even");
  if (shape.latent % 2 != 0) read.fail("kv_lora_rank must be even");
  return shape;
}

}  // namespace

Result<KvLayout> latent_decoder_layout(const Checkpoint& checkpoint, DType cache_dtype) {
  ASSIGN_OR_RETURN(const LatentDecoderShape shape, read_latent_decoder_shape(checkpoint));
  return latent_decoder_layout_of(shape, checkpoint, cache_dtype);
}

Result<KvLayout> latent_decoder_layout_of(const LatentDecoderShape& shape,
                                          const Checkpoint& checkpoint, DType cache_dtype) {
  RETURN_IF_ERROR(require_float_cache(checkpoint.config(), cache_dtype));
  return PreNormDecoder<nn::LatentAttention>::make_layout(shape, cache_dtype);
}

Result<LatentDecoderShape> read_latent_decoder_shape(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config());
  LatentDecoderShape shape;
  shape.attention = read_attention(read);
  read_decoder_shape(read, shape);
  bool bias = false;
  read.read_or("attention_bias", bias, false);
  if (bias) read.fail("attention_bias is not supported with latent attention");
  shape.rope.width = static_cast<int>(shape.attention.rope);
  bool interleaved = true;  // as transformers' DeepseekV3Config has it
  read.read_or("rope_interleave", interleaved, true);
  shape.rope.layout = interleaved ? RopeLayout::kInterleaved : RopeLayout::kHalf;
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
  RETURN_IF_ERROR(require_float_cache(checkpoint.config(), options.cache_dtype));
  WeightLoader weights(checkpoint, ops, options.progress, options.cache, options.plan);
  shape.attention.packed = options.cache_dtype;
  if (options.latent_by_shape) shape.attention.form = nn::LatentForm::kByShape;
  if (options.next_token_module) {
    RETURN_IF_ERROR(check_next_token_module(shape, checkpoint));
    auto both = std::make_unique<NextTokenDecoder>(shape, nn::Loader(weights), options.cache_dtype);
    RETURN_IF_ERROR(weights.status());
    return std::unique_ptr<const Model>(std::move(both));
  }
  auto model = std::make_unique<PreNormDecoder<nn::LatentAttention>>(shape, nn::Loader(weights),
                                                                     options.cache_dtype);
  RETURN_IF_ERROR(weights.status());
  return std::unique_ptr<const Model>(std::move(model));
}

}  // namespace kun
