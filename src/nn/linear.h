// Matrix products with the projections of a layer, several of which may be fused into one.
#pragma once

#include <initializer_list>
#include <memory>

#include "nn/loader.h"

namespace kun::nn {

// One projection, or several that read the same input and whose outputs lie side by side.
class Linear {
 public:
  struct Part {
    Loader load;
    std::int64_t rows = 0;
  };

  Linear(std::initializer_list<Part> parts, std::int64_t cols);

  // in: [token, cols], out: [token, rows]
  void operator()(ConstTensorView in, LinearOutput mode, TensorView out) const {
    ops_->linear(in, *weight_, bias_.view, mode, out);
  }

  const PackedMatrix& weight() const { return *weight_; }
  ConstTensorView bias() const { return bias_.view; }
  const PackedMatrix* packed() const { return weight_.get(); }  // null when loading failed

 private:
  Ops* ops_;
  std::unique_ptr<PackedMatrix> weight_;
  DeviceVector bias_;  // empty when the checkpoint has none
};

}  // namespace kun::nn
