// A latent decoder together with its next-token module (multi-token prediction, DeepSeek-V3): one
// more layer that sees a token and the decoder's hidden state before it, and guesses what follows
// the token. Embedding and output head are the decoder's.
//
// The module's entry for a token depends on this token and those before it, as all cache entries
// do, so it lies at the token's own position, and forks, prefix hits and preemption need not know
// of it. The first token has nothing before it: its entry is attended to by nobody.
#pragma once

#include "models/latent_decoder.h"

namespace kun {

class NextTokenDecoder final : public Model {
 public:
  // The loader's status says whether this went well.
  NextTokenDecoder(const LatentDecoderShape& shape, const nn::Loader& load, DType cache_dtype);

  int vocabulary_size() const override { return decoder_.vocabulary_size(); }
  int hidden_size() const override { return decoder_.hidden_size(); }
  int context_length_max() const override { return decoder_.context_length_max(); }
  const KvLayout& kv_layout() const override { return layout_; }
  int guess_group() const override { return static_cast<int>(layout_.groups.size()) - 1; }

  Status forward(const ForwardBatch& batch, const KvStorage& cache, TensorView out) const override;
  Status logits(ConstTensorView hidden, TensorView out) const override {
    return decoder_.logits(hidden, out);
  }
  Status guess(const GuessBatch& batch, const KvStorage& cache, TensorView hidden) const override;
  void make_guess_entries(const GuessBatch& batch, const KvStorage& cache) const override;

 private:
  TensorView shift(const ForwardBatch& batch, const KvStorage& cache, ConstTensorView hidden) const;
  bool load_before(const ForwardBatch& batch, const KvStorage& cache, std::size_t slice,
                   TensorView row) const;
  void keep_block_ends(const ForwardBatch& batch, const KvStorage& cache,
                       ConstTensorView hidden) const;
  TensorView combine(std::span<const Token> tokens, ConstTensorView before) const;
  TensorView angles(std::span<const std::int32_t> positions) const;
  CachePlane ends_plane(const KvStorage& cache) const;

  PreNormDecoder<nn::LatentAttention> decoder_;
  std::size_t layer_index_;
  KvLayout layout_;
  Ops& ops_;
  nn::Rope rope_;
  WeightView embedding_;
  nn::RmsNorm embedding_norm_;
  nn::RmsNorm hidden_norm_;
  nn::Linear combine_;
  PreNormLayer<nn::LatentAttention> layer_;
  nn::RmsNorm head_norm_;
  mutable nn::Scratch scratch_;  // of the call in progress; one at a time
};

// One sentence when the checkpoint has no such module.
Status check_next_token_module(const LatentDecoderShape& shape, const Checkpoint& checkpoint);

}  // namespace kun
