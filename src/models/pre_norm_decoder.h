// The decoder that most architectures are: embedding, layers of attention and feed-forward blocks
// that each read a normalized residual stream and add to it, final norm, output head. What tells
// them apart is the kind of attention, and which layers are mixtures of experts.
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "models/model.h"
#include "models/pre_norm_layer.h"
#include "nn/rope.h"

namespace kun {

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

  static KvLayout make_layout(const Shape& shape, DType cache_dtype) {
    KvGroup group;
    group.layers.resize(static_cast<std::size_t>(shape.layer_count));
    std::iota(group.layers.begin(), group.layers.end(), 0);
    group.planes = Attention::planes(shape.attention, cache_dtype);
    return {{std::move(group)}};
  }

  nn::Rope& rope() { return rope_; }

  int vocabulary_size() const override { return shape_.vocabulary; }
  int hidden_size() const override { return static_cast<int>(hidden()); }
  int context_length_max() const override { return shape_.context_length_max; }
  const KvLayout& kv_layout() const override { return layout_; }

  Status forward(const ForwardBatch& batch, const KvStorage& cache, TensorView out) const override {
    const TensorView residual = run_layers(batch, cache);
    if (wants_all_rows(batch)) {
      final_norm_(residual, out);
      return {};
    }
    for (std::size_t i = 0; i < batch.wanted_rows.size(); ++i) {
      final_norm_(residual.slice_rows(batch.wanted_rows[i], 1),
                  out.slice_rows(static_cast<std::int64_t>(i), 1));
    }
    return {};
  }

  // forward() for every row, whatever is wanted. hidden: [token, hidden].
  void forward_all(const ForwardBatch& batch, const KvStorage& cache, TensorView hidden) const {
    final_norm_(run_layers(batch, cache), hidden);
  }

  Status logits(ConstTensorView hidden, TensorView out) const override {
    head_(hidden, LinearOutput::kStore, out);
    return {};
  }

 private:
  // The residual stream behind the last layer: [token, hidden].
  TensorView run_layers(const ForwardBatch& batch, const KvStorage& cache) const {
    const auto token_count = std::ssize(batch.tokens);
    scratch_.reset();
    const TensorView residual = scratch_.take({token_count, hidden()});
    const TensorView cos_sin = scratch_.take({token_count, rope_.pair_count(), 2});
    ops_.embed(batch.tokens, embedding_, residual);
    rope_.fill(batch.positions, cos_sin);
    for (const PreNormLayer<Attention>& layer : layers_) {
      layer(batch.tokens, batch.groups.front(), cache, cos_sin, rope_.layout(), residual, scratch_);
    }
    return residual;
  }

  static nn::Loader head_loader(const nn::Loader& load, const Shape& shape) {
    return shape.tied_embeddings ? load / "model" / "embed_tokens" : load / "lm_head";
  }

  // All of them, in their order.
  static bool wants_all_rows(const ForwardBatch& batch) {
    if (batch.wanted_rows.size() != batch.tokens.size()) return false;
    std::int32_t row = 0;
    for (const std::int32_t wanted : batch.wanted_rows) {
      if (wanted != row++) return false;
    }
    return true;
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
