// The pre-norm decoder with latent attention and experts that DeepSeek V2, V3 and V3.2 share.
#pragma once

#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/pre_norm_decoder.h"
#include "models/registry.h"
#include "nn/latent_attention.h"

namespace kun {

using LatentDecoderShape = PreNormShape<nn::LatentAttention>;

// Reads what the three spell alike.
Result<LatentDecoderShape> read_latent_decoder_shape(const Checkpoint& checkpoint);

// What its cache would hold, before anything is loaded.
Result<KvLayout> latent_decoder_layout_of(const LatentDecoderShape& shape,
                                          const Checkpoint& checkpoint, DType cache_dtype);

// Loads the weights. The checkpoint must outlive the model: embedding rows are read from it. The
// next-token module of V3, a layer beyond the last, is left alone unless the options ask for it.
Result<std::unique_ptr<const Model>> load_latent_decoder(LatentDecoderShape shape,
                                                         const Checkpoint& checkpoint, Ops& ops,
                                                         const ModelOptions& options);

}  // namespace kun
