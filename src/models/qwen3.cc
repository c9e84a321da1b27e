// Qwen3: R1-0528-Qwen3-8B. Every head of q and k is normalized before RoPE.
#include "models/dense_decoder.h"
#include "models/factories.h"

namespace kun {

Result<std::unique_ptr<const Model>> load_qwen3(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options) {
  ASSIGN_OR_RETURN(DenseDecoderShape shape, read_dense_decoder_shape(checkpoint));
  shape.attention.head_norm = true;
  return load_dense_decoder(shape, checkpoint, ops, options);
}

}  // namespace kun
