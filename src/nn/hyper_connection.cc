#include "nn/hyper_connection.h"

#include <vector>

#include "nn/float_weights.h"
#include "nn/heads.h"

namespace kun::nn {
namespace {

std::string joined(std::string_view name, std::string_view end) {
  return std::string(name) + "_" + std::string(end);
}

}  // namespace

HyperConnection::HyperConnection(const Loader& load, std::string_view name, const HyperShape& shape,
                                 bool head)
    : ops_(&load.ops()),
      shape_(shape),
      head_(head),
      mix_(pack_exact(load, load.name(joined(name, "fn")), width(), shape.streams * shape.hidden)),
      base_(load.weights().vector(load.name(joined(name, "base")), width())),
      scale_(load.weights().vector(load.name(joined(name, "scale")), head ? 1 : 3)),
      ones_(device_vector(
          *ops_,
          std::vector<float>(static_cast<std::size_t>(shape.streams * shape.hidden), 1.0F))) {}

TensorView HyperConnection::weights(ConstTensorView streams, Scratch& scratch) const {
  const TensorView result = scratch.take({streams.rows(), width()});
  const std::int64_t mark = scratch.mark();
  const TensorView normed = scratch.take({streams.rows(), streams.cols()});
  const TensorView mix = scratch.take({streams.rows(), width()});
  ops_->rms_norm(streams, ones_.view, shape_.norm_epsilon, normed);
  ops_->linear(normed, *mix_, {}, LinearOutput::kStore, mix);
  ops_->hyper_weights({.mix = mix,
                       .base = base_.view,
                       .scale = scale_.view,
                       .streams = shape_.streams,
                       .iterations = shape_.iterations,
                       .epsilon = shape_.epsilon,
                       .out = result});
  scratch.rewind(mark);
  return result;
}

void HyperConnection::collapse(ConstTensorView streams, ConstTensorView weights,
                               TensorView out) const {
  ops_->hyper_collapse(split_heads(streams, shape_.streams), weights, out);
}

void HyperConnection::expand(ConstTensorView in, ConstTensorView weights,
                             TensorView streams) const {
  ops_->hyper_expand(in, weights, heads_of(streams, 0, shape_.streams, shape_.hidden));
}

}  // namespace kun::nn
