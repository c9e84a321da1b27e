// Root-mean-square normalization with a learned weight.
#pragma once

#include "nn/loader.h"

namespace kun::nn {

class RmsNorm {
 public:
  RmsNorm(const Loader& load, std::int64_t width, float epsilon)
      : ops_(&load.ops()),
        weight_(load.weights().vector(load.weight(), width)),
        epsilon_(epsilon) {}

  // [token, width], or [token, head, width] with each head normalized by itself; in == out is fine.
  void operator()(ConstTensorView in, TensorView out) const {
    ops_->rms_norm(in, weight_.view, epsilon_, out);
  }

 private:
  Ops* ops_;
  DeviceVector weight_;
  float epsilon_;
};

}  // namespace kun::nn
