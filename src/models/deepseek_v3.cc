// DeepSeek V3, R1 and V3.1: latent attention, and experts chosen by sigmoid plus a learned bias, in
// groups judged by their two best.
#include "models/factories.h"
#include "models/latent_decoder.h"

namespace kun {

Result<std::unique_ptr<const Model>> load_deepseek_v3(const Checkpoint& checkpoint, Ops& ops,
                                                      const ModelOptions& options) {
  ASSIGN_OR_RETURN(const LatentDecoderShape shape, read_latent_decoder_shape(checkpoint));
  return load_latent_decoder(shape, checkpoint, ops, options);
}

}  // namespace kun
