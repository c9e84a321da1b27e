// An Executor runs plans on one worker or on many. The engine cannot tell the difference.
#pragma once

#include <cstdint>

#include "plan/batch_plan.h"
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

  // Grows while work gets done; read by any thread.
  virtual std::uint64_t progress() const = 0;
};

}  // namespace kun
