// DeepSeek-MoE-16B: Llama's attention, and after the first layers a mixture of experts whose
// weights are the plain softmax of the gate.
#include "models/dense_decoder.h"
#include "models/factories.h"
#include "models/shape_reader.h"

namespace kun {

Result<std::unique_ptr<const Model>> load_deepseek(const Checkpoint& checkpoint, Ops& ops,
                                                   const ModelOptions& options) {
  ASSIGN_OR_RETURN(DenseDecoderShape shape, read_dense_decoder_shape(checkpoint));
  ConfigReader read(checkpoint.config());
  shape.experts = read_expert_layers(read, shape.attention.hidden);
  RETURN_IF_ERROR(read.status());
  return load_dense_decoder(shape, checkpoint, ops, options);
}

}  // namespace kun
