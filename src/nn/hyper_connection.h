// Hyper-connections of DeepSeek V4: the residual stream is a few streams side by side, and every
// sublayer reads a mix of them that depends on the token (device/hyper_connection.h).
#pragma once

#include <memory>

#include "nn/linear.h"
#include "nn/scratch.h"

namespace kun::nn {

struct HyperShape {
  int streams = 4;
  int iterations = 20;  // of the normalization that makes the mixing doubly stochastic
  float epsilon = 1e-6F;
  float norm_epsilon = 1e-6F;
  std::int64_t hidden = 0;
};

class HyperConnection {
 public:
  // `load` stands at the layer; `name` is the tensors' common beginning: "hc_attn". `head`: only
  // the weights for reading are there, as at the end of the model.
  HyperConnection(const Loader& load, std::string_view name, const HyperShape& shape, bool head);

  // [token, 2 + N times N], or [token, N] at the head; streams: [token, N * hidden].
  TensorView weights(ConstTensorView streams, Scratch& scratch) const;

  // out: [token, hidden]
  void collapse(ConstTensorView streams, ConstTensorView weights, TensorView out) const;

  // Adds a sublayer's output, and lets the streams mix.
  void expand(ConstTensorView in, ConstTensorView weights, TensorView streams) const;

 private:
  std::int64_t width() const {
    return head_ ? shape_.streams : shape_.streams * (2 + shape_.streams);
  }

  Ops* ops_;
  HyperShape shape_;
  bool head_;
  std::unique_ptr<PackedMatrix> mix_;
  DeviceVector base_;
  DeviceVector scale_;
  DeviceVector ones_;
};

}  // namespace kun::nn
