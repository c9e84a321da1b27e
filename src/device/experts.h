// Mixture of experts: which experts a token goes to, and what they make of it.
#pragma once

#include <cstdint>
#include <span>

#include "device/weight.h"
#include "tensor/tensor_view.h"

namespace kun {

// What turns a gate's logits into scores.
enum class GateScore : std::uint8_t {
  kSoftmax,
  kSigmoid,
  kSqrtSoftplus,  // sqrt(log(1 + e^x))
};

// What a group of experts is judged by when only some groups may be chosen from.
enum class GroupScore : std::uint8_t { kMax, kTopTwo };

// Per token: scores p = score(logits), choices c = p + bias; the kept_group_count best groups of
// experts; in them the best choices, ties to the lower index; weights p, divided by their sum if
// `normalize`, times `scale`. A token's result does not depend on the others.
struct RouteArguments {
  ConstTensorView logits;  // [token, expert] F32
  ConstTensorView bias;    // [expert] F32; or empty
  ConstTensorView given;   // [token, chosen] I32: the experts, chosen already; or empty
  GateScore score = GateScore::kSoftmax;
  GroupScore group_score = GroupScore::kMax;
  int group_count = 1;  // divides the number of experts
  int kept_group_count = 1;
  bool normalize = false;
  float scale = 1.0F;
  TensorView experts;  // [token, chosen] I32, the best first
  TensorView weights;  // [token, chosen] F32
};

// down(silu(gate(x)) * up(x)). gate_up stacks two views of equal size.
struct ExpertWeights {
  const PackedMatrix* gate_up = nullptr;
  const PackedMatrix* down = nullptr;
};

// out[t, :] += sum_j weights[t, j] expert_{experts[t, j]}(in[t, :]) + shared(in[t, :]), summed in
// the order of j. Tokens are grouped, so that each expert's weights are read once.
struct ExpertArguments {
  ConstTensorView in;       // [token, hidden] F32
  ConstTensorView experts;  // [token, chosen] I32, each in [0, table.size())
  ConstTensorView weights;  // [token, chosen] F32
  std::span<const ExpertWeights> table;
  ExpertWeights shared{};  // sees every token with weight 1; or empty
  float limit = 0.0F;      // V4: gate at most `limit`, up in [-limit, limit]; 0: no limit
  TensorView out;          // [token, hidden] F32
};

}  // namespace kun
