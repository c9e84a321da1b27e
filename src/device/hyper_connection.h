// Hyper-connections: a residual stream of several lanes that each sublayer reads a mix of, and
// whose lanes mix with each other beside it (mHC of DeepSeek V4).
#pragma once

#include "tensor/tensor_view.h"

namespace kun {

// From mix [token, N (2 + N)] (or [token, N]: only `pre`):
//   pre_i  = sigmoid(mix_i scale_0 + base_i) + epsilon
//   post_i = 2 sigmoid(mix_{N+i} scale_1 + base_{N+i})
//   C[m][n] = softmax over n of (mix_{2N+mN+n} scale_2 + base_{2N+mN+n}) + epsilon, then columns
//             divided by their sum + epsilon; `iterations` - 1 times more rows, then columns.
// out has mix's shape: pre, post, C. N = streams. Source: deepseek-ai/TileKernels torch/mhc.py.
struct HyperWeightsArguments {
  ConstTensorView mix;
  ConstTensorView base;   // as many as mix has columns
  ConstTensorView scale;  // 3, or 1
  int streams = 4;        // at most 8
  int iterations = 20;
  float epsilon = 1e-6F;
  TensorView out;
};

}  // namespace kun
