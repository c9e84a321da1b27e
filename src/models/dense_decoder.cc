#include "models/dense_decoder.h"

#include <numeric>
#include <utility>

#include "nn/gated_mlp.h"

namespace kun {
namespace {

class Layer {
 public:
  Layer(const nn::Loader& load, const DenseDecoderShape& shape, int index)
      : hidden_(shape.attention.hidden),
        attention_norm_(load / "input_layernorm", hidden_, shape.attention.norm_epsilon),
        attention_(load / "self_attn", shape.attention, index),
        mlp_norm_(load / "post_attention_layernorm", hidden_, shape.attention.norm_epsilon),
        mlp_(load / "mlp", hidden_, shape.inner) {}

  // residual: [token, hidden], in and out.
  void operator()(const ForwardBatch& batch, const KvStorage& cache, ConstTensorView cos_sin,
                  RopeLayout layout, TensorView residual, nn::Scratch& scratch) const {
    const std::int64_t mark = scratch.mark();
    const TensorView normed = scratch.take({residual.rows(), hidden_});
    attention_norm_(residual, normed);
    attention_(batch.groups.front(), cache, normed, cos_sin, layout, residual, scratch);
    mlp_norm_(residual, normed);
    mlp_(normed, residual, scratch);
    scratch.rewind(mark);
  }

 private:
  std::int64_t hidden_;
  nn::RmsNorm attention_norm_;
  nn::Attention attention_;
  nn::RmsNorm mlp_norm_;
  nn::GatedMlp mlp_;
};

class DenseDecoder final : public Model {
 public:
  DenseDecoder(const DenseDecoderShape& shape, const nn::Loader& load, DType cache_dtype)
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
    for (const Layer& layer : layers_) {
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
  static nn::Loader head_loader(const nn::Loader& load, const DenseDecoderShape& shape) {
    return shape.tied_embeddings ? load / "model" / "embed_tokens" : load / "lm_head";
  }

  static KvLayout make_layout(const DenseDecoderShape& shape, DType cache_dtype) {
    KvGroup group;
    group.layers.resize(static_cast<std::size_t>(shape.layer_count));
    std::iota(group.layers.begin(), group.layers.end(), 0);
    group.planes = nn::Attention::planes(shape.attention, cache_dtype);
    return {{std::move(group)}};
  }

  std::int64_t hidden() const { return shape_.attention.hidden; }

  DenseDecoderShape shape_;
  KvLayout layout_;
  Ops& ops_;
  nn::Rope rope_;
  WeightView embedding_;
  std::vector<Layer> layers_;
  nn::RmsNorm final_norm_;
  nn::Linear head_;
  mutable nn::Scratch scratch_;  // of the step in progress; forward() runs one call at a time
};

}  // namespace

Result<std::unique_ptr<const Model>> load_dense_decoder(const DenseDecoderShape& shape,
                                                        const Checkpoint& checkpoint, Ops& ops,
                                                        const ModelOptions& options) {
  WeightLoader weights(checkpoint, ops, options.progress, options.cache);
  auto model = std::make_unique<DenseDecoder>(shape, nn::Loader(weights), options.cache_dtype);
  RETURN_IF_ERROR(weights.status());
  if (checkpoint.has("rope_freqs.weight")) {  // GGUF's form of llama3 scaling
    ASSIGN_OR_RETURN(const auto divisors,
                     checkpoint.vector("rope_freqs.weight", model->rope().pair_count()));
    for (const float divisor : divisors) {
      if (!(divisor > 0.0F))
        return data_loss("tensor rope_freqs.weight has a divisor that is not positive");
    }
    model->rope().divide_frequencies(divisors);
  }
  return std::unique_ptr<const Model>(std::move(model));
}

}  // namespace kun
