// Multi-head latent attention (DeepSeek V2, V3, V3.2): the cache holds one small vector per token,
// from which keys and values of all heads are made.
//
// Two forms compute the same. Naive: make the keys and values of the whole context, then attend as
// others do. Absorbed: take the queries into the latent space instead, attend there, and take the
// results back. The first costs per position of the context, the second per product of a query with
// one. They round differently, and a token's form must not depend on how its prompt was cut or on
// its company, so all tokens are absorbed (decision 57). Where the operator gives that up
// (kByShape), long pieces of prompts are naive. A sparse layer (V3.2) has only the second, once its
// context exceeds what it may attend to.
#pragma once

#include <optional>
#include <vector>

#include "nn/indexer.h"
#include "nn/latent_projections.h"
#include "nn/rms_norm.h"

namespace kun::nn {

enum class LatentForm : std::uint8_t { kAbsorbed, kByShape, kNaive };

struct LatentAttentionShape {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t query_rank = 0;  // 0: queries are projected in one step
  std::int64_t latent = 0;      // width of the vector in the cache, RoPE's part apart
  std::int64_t nope = 0;        // elements of a query or key that are not rotated
  std::int64_t rope = 0;        // elements that are
  std::int64_t value = 0;
  float norm_epsilon = 1e-6F;
  float scale = 1.0F;           // of scores, YaRN's factor included
  DType packed = DType::kBF16;  // of the per-head matrices: what the cache holds
  std::optional<IndexerShape> indexer;
  LatentForm form = LatentForm::kAbsorbed;  // kNaive: for tests
  int first_entry = 0;  // entries before it are attended to by no row; not with kNaive
};

class LatentAttention {
 public:
  using Shape = LatentAttentionShape;

  LatentAttention(const Loader& load, const LatentAttentionShape& shape, int layer);

  static std::vector<KvPlane> planes(const LatentAttentionShape& shape, DType dtype);

  // residual[t, :] += o_proj(attention(in)); writes this step's entries into the cache.
  // cos_sin: [token, rope/2, 2].
  void operator()(const GroupBatch& batch, const KvStorage& cache, ConstTensorView in,
                  ConstTensorView cos_sin, RopeLayout layout, TensorView residual,
                  Scratch& scratch) const;

  // Writes this step's entries and computes nothing else.
  void store(const GroupBatch& batch, const KvStorage& cache, ConstTensorView in,
             ConstTensorView cos_sin, RopeLayout layout, Scratch& scratch) const;

 private:
  // What the step's rows have in common.
  struct Step {
    TensorView query;          // [token, head, nope + rope], rotated
    ConstTensorView query_in;  // [token, query_rank]: what the indexer makes its queries from
    ConstTensorView weights;   // [token, indexer head]
    ConstTensorView cos_sin;
    CachePlane entries;
    CachePlane index_keys;
    TensorView mixed;  // [token, head, value]: the result
  };

  std::int64_t query_width() const;
  TensorView store_entries(const GroupBatch& batch, const KvStorage& cache, ConstTensorView in,
                           ConstTensorView cos_sin, RopeLayout layout, Scratch& scratch) const;
  bool sparse(const AttentionSlice& slice) const;
  bool use_naive(const AttentionSlice& slice) const;
  void attend(const Step& step, std::span<const AttentionSlice> slices, Scratch& scratch) const;
  void attend_absorbed(const Step& step, std::span<const AttentionSlice> slices,
                       Scratch& scratch) const;
  void attend_naive(const Step& step, const AttentionSlice& slice, Scratch& scratch) const;

  Ops* ops_;
  LatentAttentionShape shape_;
  std::size_t layer_;
  Linear down_;  // queries (or what they are made from), latent, rope key
  std::optional<RmsNorm> query_norm_;
  std::optional<Linear> query_up_;
  RmsNorm latent_norm_;
  LatentProjections heads_;
  std::optional<Indexer> indexer_;
  Linear output_;
};

}  // namespace kun::nn
