// How --memory-budget is spent: weights, the work of a step and the KV cache first, and what is
// left holds requests. Made before the engine is, so that a budget that is too small is told and
// not discovered.
#pragma once

#include <cstdint>

#include "base/memory_ledger.h"
#include "base/status.h"
#include "device/device.h"
#include "runtime/engine_setup.h"
#include "runtime/model_bundle.h"

namespace kun {

struct MemoryPlan {
  std::int64_t budget_bytes = 0;   // of the whole process; 0: none
  std::int64_t weights_bytes = 0;  // and the program itself
  std::int64_t step_bytes = 0;     // activations, logits, what grammars need of the vocabulary
  std::int64_t cache_bytes = 0;    // of the KV cache, a draft model's included
};

// Sets the size of the cache in `settings` where it was left open. kResourceExhausted says what
// does not fit. Requires: budget_bytes > 0.
Result<MemoryPlan> plan_memory(std::int64_t budget_bytes, const ModelBundle& bundle, Device& device,
                               EngineSettings& settings);

// From now on requests may hold what `plan` leaves.
void share_memory(const MemoryPlan& plan, MemoryLedger& ledger);

// While the model is loaded, and how the heap gives back what it has: call before anything else.
void prepare_memory(std::int64_t budget_bytes, MemoryLedger& ledger);

}  // namespace kun
