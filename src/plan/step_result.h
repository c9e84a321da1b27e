// What a step computed.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/batch_plan.h"

namespace kun {

struct TokenLogprob {
  Token token = 0;
  float logprob = 0.0F;  // of the model's own distribution, before temperature and filters
};

struct SampledToken {
  Token token = 0;
  float logprob = 0.0F;           // meaningful when logprobs were asked for
  std::vector<TokenLogprob> top;  // likeliest first
};

struct SliceResult {
  SequenceId sequence = 0;
  // One per wanted offset; with drafts, those that were right and one token more.
  std::vector<SampledToken> tokens;
  bool corrupted = false;           // a logits row was not finite: the sequence must end
  bool starved = false;             // mask and parameters left no token: the sequence must end
  std::vector<double> pooled = {};  // sum of the wanted hidden states, of a slice that pools
};

struct StepResult {
  std::uint64_t step = 0;
  Status status;                    // a failed step fails its sequences, not the process
  std::vector<SliceResult> slices;  // in plan order
};

}  // namespace kun
