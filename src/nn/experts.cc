#include "nn/experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "nn/float_weights.h"
#include "nn/heads.h"

namespace kun::nn {
namespace {

ExpertWeights load_expert(const Loader& load, const ExpertNames& names, std::int64_t hidden,
                          std::int64_t inner, ReadShare share,
                          std::vector<std::unique_ptr<PackedMatrix>>& keep) {
  WeightLoader& weights = load.weights();
  const MatrixPart gate_up[] = {{(load / names.gate_proj).weight(), inner},
                                {(load / names.up_proj).weight(), inner}};
  const MatrixPart down = {(load / names.down_proj).weight(), hidden};
  keep.push_back(weights.matrix(gate_up, hidden, share));
  keep.push_back(weights.matrix({&down, 1}, inner, share));
  return {keep[keep.size() - 2].get(), keep.back().get()};
}

}  // namespace

Experts::Experts(const Loader& load, const ExpertsShape& shape, const ExpertNames& names,
                 int vocabulary)
    : ops_(&load.ops()),
      shape_(shape),
      // A product in BF16 would send tokens to other experts than the checkpoint means.
      gate_(pack_exact(load, (load / "gate").weight(), shape.expert_count, shape.hidden)) {
  WeightLoader& weights = load.weights();
  if (vocabulary > 0) {
    const std::string name = load.name("gate", names.table);
    by_token_ = weights.integers(name, vocabulary, shape.chosen_count);
    const auto valid = [&](std::int32_t e) { return e >= 0 && e < shape.expert_count; };
    if (!std::all_of(by_token_.begin(), by_token_.end(), valid)) {
      weights.fail(data_loss(fmt::format("tensor {} names an expert beyond the {} there are", name,
                                         shape.expert_count)));
    }
  } else if (shape.has_bias) {
    bias_ = weights.vector(load.name("gate", names.bias), shape.expert_count);
  }
  for (int e = 0; e < shape.expert_count && weights.status().ok(); ++e) {
    table_.push_back(load_expert(load / "experts" / e, names, shape.hidden, shape.inner,
                                 {shape.chosen_count, shape.expert_count}, matrices_));
  }
  if (shape.shared_inner == 0 || !weights.status().ok()) return;
  shared_ =
      load_expert(load / "shared_experts", names, shape.hidden, shape.shared_inner, {}, matrices_);
}

ConstTensorView Experts::look_up(std::span<const Token> tokens, Scratch& scratch) const {
  const TensorView given = as_integers(scratch.take({std::ssize(tokens), shape_.chosen_count}));
  const auto chosen = static_cast<std::size_t>(shape_.chosen_count);
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const std::size_t first = static_cast<std::size_t>(tokens[t]) * chosen;
    CHECK(first + chosen <= by_token_.size());
    std::copy_n(by_token_.data() + first, chosen,
                given.row<std::int32_t>(static_cast<std::int64_t>(t)));
  }
  return given;
}

void Experts::operator()(std::span<const Token> tokens, ConstTensorView in, TensorView residual,
                         Scratch& scratch) const {
  const TensorView logits = scratch.take({in.rows(), shape_.expert_count});
  const TensorView experts = as_integers(scratch.take({in.rows(), shape_.chosen_count}));
  const TensorView weights = scratch.take({in.rows(), shape_.chosen_count});
  ops_->linear(in, *gate_, {}, LinearOutput::kStore, logits);
  ops_->route({.logits = logits,
               .bias = bias_.view,
               .given = by_token_.empty() ? ConstTensorView() : look_up(tokens, scratch),
               .score = shape_.score,
               .group_score = shape_.group_score,
               .group_count = shape_.group_count,
               .kept_group_count = shape_.kept_group_count,
               .normalize = shape_.normalize,
               .scale = shape_.scale,
               .experts = experts,
               .weights = weights});
  ops_->experts({.in = in,
                 .experts = experts,
                 .weights = weights,
                 .table = table_,
                 .shared = shared_,
                 .limit = shape_.limit,
                 .out = residual});
}

}  // namespace kun::nn
