// An Executor runs plans on one worker or on many. The engine cannot tell the difference.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/batch_plan.h"
#include "plan/draft_wish.h"
#include "plan/sampling_batch.h"
#include "plan/step_result.h"

namespace kun {

// Three calls, not one: the next step can be planned while this one runs, and what the sampler
// needs may come after the forward pass began. The plan and the batch must live until wait().
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(const BatchPlan& plan) = 0;
  virtual void supply(const SamplingBatch& sampling) = 0;
  virtual StepResult wait() = 0;

  // Drafts for the wishes, in their order, each at most as many as are wanted. Between steps only.
  virtual std::vector<std::vector<Token>> propose(std::span<const DraftWish> wishes) {
    return std::vector<std::vector<Token>>(wishes.size());
  }

  // Grows while work gets done; read by any thread.
  virtual std::uint64_t progress() const = 0;
};

}  // namespace kun
