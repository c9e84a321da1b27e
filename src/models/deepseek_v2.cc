// DeepSeek V2, V2-Lite, Coder-V2 and V2.5: latent attention, and experts chosen by softmax, in
// groups judged by their best expert where the model is large enough to have groups.
#include "models/factories.h"
#include "models/latent_decoder.h"

namespace kun {

Result<std::unique_ptr<const Model>> load_deepseek_v2(const Checkpoint& checkpoint, Ops& ops,
                                                      const ModelOptions& options) {
  ASSIGN_OR_RETURN(const LatentDecoderShape shape, read_latent_decoder_shape(checkpoint));
  return load_latent_decoder(shape, checkpoint, ops, options);
}

}  // namespace kun
