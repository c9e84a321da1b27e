// Multi-head and grouped-query attention over a paged cache of keys and values.
#pragma once

#include <optional>
#include <vector>

#include "kv/kv_layout.h"
#include "nn/forward_batch.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "nn/scratch.h"

namespace kun::nn {

struct AttentionShape {
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // divides heads
  std::int64_t head_width = 0;
  float norm_epsilon = 1e-6F;
  bool head_norm = false;  // Qwen3: RMSNorm over each head of q and k before RoPE
};

class Attention {
 public:
  using Shape = AttentionShape;

  Attention(const Loader& load, const AttentionShape& shape, int layer);

  // The planes of one layer's cache.
  static std::vector<KvPlane> planes(const AttentionShape& shape, DType dtype);

  // residual[t, :] += o_proj(attention(in)); writes this step's keys and values into the cache.
  // cos_sin: [token, head_width/2, 2].
  void operator()(const GroupBatch& batch, const KvStorage& cache, ConstTensorView in,
                  ConstTensorView cos_sin, RopeLayout layout, TensorView residual,
                  Scratch& scratch) const;

 private:
  Ops* ops_;
  AttentionShape shape_;
  std::size_t layer_;
  Linear qkv_;
  std::optional<RmsNorm> query_norm_;
  std::optional<RmsNorm> key_norm_;
  Linear output_;
};

}  // namespace kun::nn
