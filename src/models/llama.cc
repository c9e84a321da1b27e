// Llama: DeepSeek-LLM, DeepSeek-Coder, R1-Distill-Llama, SmolLM2 and every other LlamaForCausalLM.
#include "models/dense_decoder.h"
#include "models/factories.h"

namespace kun {

Result<std::unique_ptr<const Model>> load_llama(const Checkpoint& checkpoint, Ops& ops,
                                                const ModelOptions& options) {
  ASSIGN_OR_RETURN(const DenseDecoderShape shape, read_dense_decoder_shape(checkpoint));
  return load_dense_decoder(shape, checkpoint, ops, options);
}

}  // namespace kun
