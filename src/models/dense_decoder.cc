#include "models/dense_decoder.h"

#include <fmt/format.h>

#include <utility>

#include "models/factories.h"

namespace kun {
namespace {

Status check_cache(const DenseDecoderShape& shape, DType cache_dtype) {
  if (cache_dtype != DType::kI8 || shape.attention.head_width <= kInt8HeadWidthMax) return {};
  return unimplemented(fmt::format("heads of {} elements are longer than an int8 cache takes: {}",
                                   shape.attention.head_width, kInt8HeadWidthMax));
}

}  // namespace

Result<KvLayout> dense_decoder_layout(const Checkpoint& checkpoint, DType cache_dtype) {
  ASSIGN_OR_RETURN(const DenseDecoderShape shape, read_dense_decoder_shape(checkpoint));
  RETURN_IF_ERROR(check_cache(shape, cache_dtype));
  return PreNormDecoder<nn::Attention>::make_layout(shape, cache_dtype);
}

Result<std::unique_ptr<const Model>> load_dense_decoder(const DenseDecoderShape& shape,
                                                        const Checkpoint& checkpoint, Ops& ops,
                                                        const ModelOptions& options) {
  RETURN_IF_ERROR(check_cache(shape, options.cache_dtype));
  WeightLoader weights(checkpoint, ops, options.progress, options.cache, options.plan);
  auto model = std::make_unique<PreNormDecoder<nn::Attention>>(shape, nn::Loader(weights),
                                                               options.cache_dtype);
  RETURN_IF_ERROR(weights.status());
  if (checkpoint.has("rope_freqs.weight")) {  // GGUF's form of llama3 scaling
    ASSIGN_OR_RETURN(const auto divisors,
                     checkpoint.vector("rope_freqs.weight", model->rope().pair_count()));
    for (const float divisor : divisors) {
      if (!(divisor > 0.0F))
        return data_loss("tensor rope_freqs.weight has a divisor that is not positive");
    }
    model->rope().divide_frequencies(divisors);
  }
  return std::unique_ptr<const Model>(std::move(model));
}

}  // namespace kun
