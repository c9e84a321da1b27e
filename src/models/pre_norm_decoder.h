// The decoder that most architectures are: embedding, layers of attention and feed-forward blocks
// that each read a normalized residual stream and add to it, final norm, output head. What tells
// them apart is the kind of attention, and which layers are mixtures of experts.
#pragma once

#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "models/model.h"
#include "models/pre_norm_shape.h"
#include "nn/experts.h"
#include "nn/gated_mlp.h"
#include "nn/rms_norm.h"
#include "nn/rope.h"

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

  // residual: [token, hidden], in and out.
  void operator()(const ForwardBatch& batch, const KvStorage& cache, ConstTensorView cos_sin,
                  RopeLayout layout, TensorView residual, nn::Scratch& scratch) const {
    const std::int64_t mark = scratch.mark();
    const TensorView normed = scratch.take({residual.rows(), hidden_});
    attention_norm_(residual, normed);
    attention_(batch.groups.front(), cache, normed, cos_sin, layout, residual, scratch);
    mlp_norm_(residual, normed);
    if (experts_) {
      (*experts_)(batch.tokens, normed, residual, scratch);
    } else {
      (*mlp_)(normed, residual, scratch);
    }
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

template <class Attention>
class PreNormDecoder final : public Model {
 public:
  using Shape = PreNormShape<Attention>;

  // The loader's status says whether this went well.
  PreNormDecoder(const Shape& shape, const nn::Loader& load, DType cache_dtype)
      : shape_(shape),
        layout_(make_layout(shape, cache_dtype)),
        ops_(load.ops()),
        rope_(shape.rope),
        embedding_(load.weights().table("model.embed_tokens.weight", shape.vocabulary, hidden())),
        final_norm_(load / "model" / "norm", hidden(), shape.attention.norm_epsilon),
        head_({{head_loader(load, shape), shape.vocabulary}}, hidden()),
        scratch_(load.ops()) {
    layers_.reserve(static_cast<std::size_t>(shape.layer_count));
    for (int i = 0; i < shape.layer_count && load.weights().status().ok(); ++i) {
      layers_.emplace_back(load / "model" / "layers" / i, shape, i);
    }
  }

  nn::Rope& rope() { return rope_; }

  int vocabulary_size() const override { return shape_.vocabulary; }
  int hidden_size() const override { return static_cast<int>(hidden()); }
  int context_length_max() const override { return shape_.context_length_max; }
  const KvLayout& kv_layout() const override { return layout_; }

  Status forward(const ForwardBatch& batch, const KvStorage& cache, TensorView out) const override {
    const auto token_count = std::ssize(batch.tokens);
    scratch_.reset();
    const TensorView residual = scratch_.take({token_count, hidden()});
    const TensorView cos_sin = scratch_.take({token_count, rope_.pair_count(), 2});
    ops_.embed(batch.tokens, embedding_, residual);
    rope_.fill(batch.positions, cos_sin);
    for (const PreNormLayer<Attention>& layer : layers_) {
      layer(batch, cache, cos_sin, rope_.layout(), residual, scratch_);
    }
    for (std::size_t i = 0; i < batch.wanted_rows.size(); ++i) {
      final_norm_(residual.slice_rows(batch.wanted_rows[i], 1),
                  out.slice_rows(static_cast<std::int64_t>(i), 1));
    }
    return {};
  }

  Status logits(ConstTensorView hidden, TensorView out) const override {
    head_(hidden, LinearOutput::kStore, out);
    return {};
  }

 private:
  static nn::Loader head_loader(const nn::Loader& load, const Shape& shape) {
    return shape.tied_embeddings ? load / "model" / "embed_tokens" : load / "lm_head";
  }

  static KvLayout make_layout(const Shape& shape, DType cache_dtype) {
    KvGroup group;
    group.layers.resize(static_cast<std::size_t>(shape.layer_count));
    std::iota(group.layers.begin(), group.layers.end(), 0);
    group.planes = Attention::planes(shape.attention, cache_dtype);
    return {{std::move(group)}};
  }

  std::int64_t hidden() const { return shape_.attention.hidden; }

  Shape shape_;
  KvLayout layout_;
  Ops& ops_;
  nn::Rope rope_;
  WeightView embedding_;
  std::vector<PreNormLayer<Attention>> layers_;
  nn::RmsNorm final_norm_;
  nn::Linear head_;
  mutable nn::Scratch scratch_;  // of the step in progress; forward() runs one call at a time
};

}  // namespace kun
