// The lightning indexer: small heads that say which entries of a long context are worth attending
// to. Its keys have a cache of their own.
#pragma once

#include <span>

#include "kv/kv_layout.h"
#include "nn/forward_batch.h"
#include "nn/linear.h"
#include "nn/scratch.h"

namespace kun::nn {

struct IndexerShape {
  int heads = 0;
  std::int64_t head_width = 0;
  int top = 0;  // entries that a token may attend to
};

// V3.2's: keys are projections of single tokens. The published code also turns queries and keys by
// a Hadamard matrix, which changes no product, and quantizes them to FP8, which we do not.
class Indexer {
 public:
  // `query_width`: of what queries are made from; `rope`: leading elements that are rotated.
  Indexer(const Loader& load, const IndexerShape& shape, std::int64_t hidden,
          std::int64_t query_width, std::int64_t rope);

  static KvPlane plane(const IndexerShape& shape, DType dtype);

  // Writes this step's keys and returns the heads' weights, [token, head].
  ConstTensorView store(ConstTensorView in, ConstTensorView cos_sin,
                        std::span<const std::int32_t> slots, CachePlane keys,
                        Scratch& scratch) const;

  // The entries for rows of the step, [row, top]; all arguments are of these rows alone, the
  // slices' first rows too. Entries before `first` are left out.
  ConstTensorView choose(ConstTensorView query_in, ConstTensorView weights, ConstTensorView cos_sin,
                         std::span<const AttentionSlice> slices, CachePlane keys, int first,
                         Scratch& scratch) const;

  int top() const { return shape_.top; }

 private:
  Ops* ops_;
  IndexerShape shape_;
  std::int64_t rope_;
  Linear query_;
  Linear key_and_weights_;
  DeviceVector norm_weight_;
  DeviceVector norm_bias_;
};

}  // namespace kun::nn
