// Mixture of experts: a gate that sends each token to a few of many small MLPs, and one that all
// tokens share.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "nn/linear.h"
#include "nn/scratch.h"

namespace kun::nn {

struct ExpertsShape {
  std::int64_t hidden = 0;
  std::int64_t inner = 0;         // of a routed expert
  std::int64_t shared_inner = 0;  // of the shared one; 0: there is none
  int expert_count = 0;
  int chosen_count = 0;  // experts per token
  GateScore score = GateScore::kSoftmax;
  GroupScore group_score = GroupScore::kMax;
  int group_count = 1;
  int kept_group_count = 1;
  bool has_bias = false;  // added for the choice only
  bool normalize = false;
  float scale = 1.0F;
  float limit = 0.0F;  // see ExpertArguments
};

// What the checkpoint calls the parts.
struct ExpertNames {
  std::string_view gate_proj = "gate_proj";
  std::string_view up_proj = "up_proj";
  std::string_view down_proj = "down_proj";
  std::string_view bias = "e_score_correction_bias";  // of the gate
  std::string_view table = "tid2eid";                 // of the gate
};

// Const once built.
class Experts {
 public:
  // `vocabulary` > 0: the gate has a table of experts per token id, instead of choosing by score.
  Experts(const Loader& load, const ExpertsShape& shape, const ExpertNames& names = {},
          int vocabulary = 0);

  // residual[t, :] += what the token's experts make of in[t, :].
  void operator()(std::span<const Token> tokens, ConstTensorView in, TensorView residual,
                  Scratch& scratch) const;

 private:
  ConstTensorView look_up(std::span<const Token> tokens, Scratch& scratch) const;

  Ops* ops_;
  ExpertsShape shape_;
  std::unique_ptr<PackedMatrix> gate_;
  DeviceVector bias_;
  std::vector<std::int32_t> by_token_;                   // [token id][chosen]
  std::vector<std::unique_ptr<PackedMatrix>> matrices_;  // of all experts
  std::vector<ExpertWeights> table_;
  ExpertWeights shared_;
};

}  // namespace kun::nn
