// One layer of a pre-norm decoder: attention, then a feed-forward block or a mixture of experts;
// each reads a normalized residual stream and adds to it.
#pragma once

#include <optional>
#include <span>

#include "models/pre_norm_shape.h"
#include "nn/experts.h"
#include "nn/gated_mlp.h"
#include "nn/rms_norm.h"

namespace kun {

template <class Attention>
class PreNormLayer {
 public:
  using Shape = PreNormShape<Attention>;

  PreNormLayer(const nn::Loader& load, const Shape& shape, int index)
      : hidden_(shape.attention.hidden),
        attention_norm_(load / "input_layernorm", hidden_, shape.attention.norm_epsilon),
        attention_(load / "self_attn", shape.attention, index),
        mlp_norm_(load / "post_attention_layernorm", hidden_, shape.attention.norm_epsilon) {
    if (shape.experts && shape.experts->contains(index)) {
      experts_.emplace(load / "mlp", shape.experts->shape);
    } else {
      mlp_.emplace(load / "mlp", hidden_, shape.inner);
    }
  }

  // residual: [token, hidden], in and out. `group` is the one that holds the layer's cache.
  void operator()(std::span<const Token> tokens, const GroupBatch& group, const KvStorage& cache,
                  ConstTensorView cos_sin, RopeLayout layout, TensorView residual,
                  nn::Scratch& scratch) const {
    const std::int64_t mark = scratch.mark();
    const TensorView normed = scratch.take({residual.rows(), hidden_});
    attention_norm_(residual, normed);
    attention_(group, cache, normed, cos_sin, layout, residual, scratch);
    mlp_norm_(residual, normed);
    if (experts_) {
      (*experts_)(tokens, normed, residual, scratch);
    } else {
      (*mlp_)(normed, residual, scratch);
    }
    scratch.rewind(mark);
  }

  // Writes the cache entries that operator() would, and computes nothing else.
  void store(const GroupBatch& group, const KvStorage& cache, ConstTensorView cos_sin,
             RopeLayout layout, ConstTensorView residual, nn::Scratch& scratch) const {
    const std::int64_t mark = scratch.mark();
    const TensorView normed = scratch.take({residual.rows(), hidden_});
    attention_norm_(residual, normed);
    attention_.store(group, cache, normed, cos_sin, layout, scratch);
    scratch.rewind(mark);
  }

 private:
  std::int64_t hidden_;
  nn::RmsNorm attention_norm_;
  Attention attention_;
  nn::RmsNorm mlp_norm_;
  std::optional<nn::GatedMlp> mlp_;
  std::optional<nn::Experts> experts_;
};

}  // namespace kun
