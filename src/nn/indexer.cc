#include "nn/indexer.h"

#include "nn/heads.h"

namespace kun::nn {
namespace {

constexpr float kNormEpsilon = 1e-6F;

}  // namespace

Indexer::Indexer(const Loader& load, const IndexerShape& shape, std::int64_t hidden,
                 std::int64_t query_width, std::int64_t rope)
    : ops_(&load.ops()),
      shape_(shape),
      rope_(rope),
      query_({{load / "wq_b", shape.heads * shape.head_width}}, query_width),
      key_and_weights_({{load / "wk", shape.head_width}, {load / "weights_proj", shape.heads}},
                       hidden),
      norm_weight_(load.weights().vector((load / "k_norm").weight(), shape.head_width)),
      norm_bias_(load.weights().vector((load / "k_norm").bias(), shape.head_width)) {}

KvPlane Indexer::plane(const IndexerShape& shape, DType dtype) {
  return {.name = "index_key", .dtype = dtype, .width = static_cast<int>(shape.head_width)};
}

ConstTensorView Indexer::store(ConstTensorView in, ConstTensorView cos_sin,
                               std::span<const std::int32_t> slots, CachePlane keys,
                               Scratch& scratch) const {
  const TensorView both = scratch.take({in.rows(), shape_.head_width + shape_.heads});
  key_and_weights_(in, LinearOutput::kStore, both);
  const TensorView key = both.slice_cols(0, shape_.head_width);
  ops_->layer_norm(key, norm_weight_.view, norm_bias_.view, kNormEpsilon, key);
  ops_->rope(heads_of(both, 0, 1, shape_.head_width).slice_cols(0, rope_), cos_sin,
             RopeLayout::kHalf);
  keys.role = CacheRole::kIndexKeys;
  ops_->store_cache(key, slots, keys);
  return both.slice_cols(shape_.head_width, shape_.heads);
}

// The published scores are these times positive constants, which change no choice.
ConstTensorView Indexer::choose(ConstTensorView query_in, ConstTensorView weights,
                                ConstTensorView cos_sin, std::span<const AttentionSlice> slices,
                                CachePlane keys, int first, Scratch& scratch) const {
  const std::int64_t rows = query_in.rows();
  const TensorView queries = scratch.take({rows, shape_.heads * shape_.head_width});
  query_(query_in, LinearOutput::kStore, queries);
  const TensorView heads = heads_of(queries, 0, shape_.heads, shape_.head_width);
  ops_->rope(heads.slice_cols(0, rope_), cos_sin, RopeLayout::kHalf);
  const TensorView chosen = as_integers(scratch.take({rows, shape_.top}));
  keys.role = CacheRole::kIndexKeys;
  ops_->choose_entries({.query = heads,
                        .weights = weights,
                        .keys = keys,
                        .slices = slices,
                        .stride = 1,
                        .first = first,
                        .chosen = chosen});
  return chosen;
}

}  // namespace kun::nn
