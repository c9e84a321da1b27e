#include "models/dense_decoder.h"

#include <utility>

namespace kun {

Result<std::unique_ptr<const Model>> load_dense_decoder(const DenseDecoderShape& shape,
                                                        const Checkpoint& checkpoint, Ops& ops,
                                                        const ModelOptions& options) {
  WeightLoader weights(checkpoint, ops, options.progress, options.cache);
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
