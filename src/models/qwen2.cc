// Qwen2: the R1-Distill-Qwen models. Llama with biases on q, k and v, which the checkpoint brings
// and nn::Linear finds by itself.
#include <fmt/format.h>

#include "models/dense_decoder.h"
#include "models/factories.h"

namespace kun {

Result<std::unique_ptr<const Model>> load_qwen2(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options) {
  ASSIGN_OR_RETURN(const DenseDecoderShape shape, read_dense_decoder_shape(checkpoint));
  if (!checkpoint.has("model.layers.0.self_attn.q_proj.bias")) {
    return data_loss(fmt::format(
        "{}: tensor 'model.layers.0.self_attn.q_proj.bias' is missing; Qwen2 has biases",
        checkpoint.path().string()));
  }
  return load_dense_decoder(shape, checkpoint, ops, options);
}

}  // namespace kun
