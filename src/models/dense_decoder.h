// The pre-norm decoder that Llama, Qwen2 and Qwen3 share: embedding, layers of grouped-query
// attention and gated MLP, final norm, output head. What tells them apart is in the shape.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "models/registry.h"
#include "nn/attention.h"
#include "nn/rope.h"

namespace kun {

struct DenseDecoderShape {
  nn::AttentionShape attention;
  nn::RopeShape rope;
  std::int64_t inner = 0;  // width of the MLP
  int layer_count = 0;
  int vocabulary = 0;
  int context_length_max = 0;
  bool tied_embeddings = false;
};

// Reads what the three architectures spell alike: sizes, RoPE and its scaling, epsilon, tying.
Result<DenseDecoderShape> read_dense_decoder_shape(const Checkpoint& checkpoint);

// Loads the weights. The checkpoint must outlive the model: embedding rows are read from it.
Result<std::unique_ptr<const Model>> load_dense_decoder(const DenseDecoderShape& shape,
                                                        const Checkpoint& checkpoint, Ops& ops,
                                                        const ModelOptions& options);

}  // namespace kun
