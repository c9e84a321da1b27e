// The SwiGLU feed-forward block: down(silu(gate(x)) * up(x)).
#pragma once

#include "nn/linear.h"
#include "nn/scratch.h"

namespace kun::nn {

class GatedMlp {
 public:
  GatedMlp(const Loader& load, std::int64_t hidden, std::int64_t inner)
      : ops_(&load.ops()),
        inner_(inner),
        gate_up_({{load / "gate_proj", inner}, {load / "up_proj", inner}}, hidden),
        down_({{load / "down_proj", hidden}}, inner) {}

  // residual[t, :] += mlp(in[t, :])
  void operator()(ConstTensorView in, TensorView residual, Scratch& scratch) const {
    const TensorView gated = scratch.take({in.rows(), inner_});
    const TensorView wide = scratch.take({in.rows(), 2 * inner_});  // last: most never touch it
    ops_->gated_mlp(in, gate_up_.weight(), down_.weight(), down_.bias(), wide, gated, residual);
  }

 private:
  Ops* ops_;
  std::int64_t inner_;
  Linear gate_up_;
  Linear down_;
};

}  // namespace kun::nn
