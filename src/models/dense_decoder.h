// The pre-norm decoder with grouped-query attention that Llama, Qwen2, Qwen3 and DeepSeek-MoE
// share. What tells them apart is in the shape.
#pragma once

#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/pre_norm_decoder.h"
#include "models/registry.h"
#include "nn/attention.h"

namespace kun {

using DenseDecoderShape = PreNormShape<nn::Attention>;

// Reads what these architectures spell alike: sizes, RoPE and its scaling, epsilon, tying.
Result<DenseDecoderShape> read_dense_decoder_shape(const Checkpoint& checkpoint);

// Loads the weights. The checkpoint must outlive the model: embedding rows are read from it.
Result<std::unique_ptr<const Model>> load_dense_decoder(const DenseDecoderShape& shape,
                                                        const Checkpoint& checkpoint, Ops& ops,
                                                        const ModelOptions& options);

}  // namespace kun
