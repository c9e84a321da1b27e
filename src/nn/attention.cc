#include "nn/attention.h"

#include <cmath>

#include "nn/heads.h"

namespace kun::nn {
namespace {

std::optional<RmsNorm> optional_norm(const Loader& load, const AttentionShape& shape) {
  if (!shape.head_norm) return std::nullopt;
  return RmsNorm(load, shape.head_width, shape.norm_epsilon);
}

}  // namespace

Attention::Attention(const Loader& load, const AttentionShape& shape, int layer)
    : ops_(&load.ops()),
      shape_(shape),
      layer_(static_cast<std::size_t>(layer)),
      qkv_({{load / "q_proj", shape.heads * shape.head_width},
            {load / "k_proj", shape.kv_heads * shape.head_width},
            {load / "v_proj", shape.kv_heads * shape.head_width}},
           shape.hidden),
      query_norm_(optional_norm(load / "q_norm", shape)),
      key_norm_(optional_norm(load / "k_norm", shape)),
      output_({{load / "o_proj", shape.hidden}}, shape.heads * shape.head_width) {}

std::vector<KvPlane> Attention::planes(const AttentionShape& shape, DType dtype) {
  const int width = static_cast<int>(shape.kv_heads * shape.head_width);
  const int head_width = static_cast<int>(shape.head_width);
  return {{.name = "key", .dtype = dtype, .width = width, .head_width = head_width},
          {.name = "value", .dtype = dtype, .width = width, .head_width = head_width}};
}

void Attention::operator()(const GroupBatch& batch, const KvStorage& cache, ConstTensorView in,
                           ConstTensorView cos_sin, RopeLayout layout, TensorView residual,
                           Scratch& scratch) const {
  const std::int64_t mark = scratch.mark();
  const std::int64_t tokens = in.rows();
  const std::int64_t query_width = shape_.heads * shape_.head_width;
  const std::int64_t kv_width = shape_.kv_heads * shape_.head_width;
  const TensorView qkv = scratch.take({tokens, query_width + 2 * kv_width});
  qkv_(in, LinearOutput::kStore, qkv);

  const TensorView query = heads_of(qkv, 0, shape_.heads, shape_.head_width);
  const TensorView key = heads_of(qkv, query_width, shape_.kv_heads, shape_.head_width);
  if (query_norm_) (*query_norm_)(query, query);
  if (key_norm_) (*key_norm_)(key, key);
  ops_->rope(query, cos_sin, layout);
  ops_->rope(key, cos_sin, layout);

  CachePlane keys = cache.planes[layer_][0];
  CachePlane values = cache.planes[layer_][1];
  keys.role = CacheRole::kKeys;
  values.role = CacheRole::kValues;
  ops_->store_cache(qkv.slice_cols(query_width, kv_width), batch.slots, keys);
  ops_->store_cache(qkv.slice_cols(query_width + kv_width, kv_width), batch.slots, values);

  const TensorView mixed = scratch.take({tokens, query_width});
  ops_->attention({.query = query,
                   .keys = keys,
                   .values = values,
                   .kv_heads = static_cast<int>(shape_.kv_heads),
                   .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_width)),
                   .slices = batch.slices,
                   .out = heads_of(mixed, 0, shape_.heads, shape_.head_width)});
  output_(mixed, LinearOutput::kAccumulate, residual);
  scratch.rewind(mark);
}

}  // namespace kun::nn
