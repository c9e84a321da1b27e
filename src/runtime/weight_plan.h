// What a model's weights will need in memory, and what a token will cost in bytes read, before any
// of them is loaded.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/ops.h"

namespace kun {

struct WeightPlan {
  std::int64_t packed_bytes = 0;  // matrices as the device will hold them
  std::int64_t table_bytes = 0;   // embeddings, which stay in the mapped file
  std::int64_t token_bytes = 0;   // of the packed ones, what one token of one user reads
};

// For the device behind `ops` with its own settings. Fails on a matrix that could not be loaded.
Result<WeightPlan> plan_weights(const Checkpoint& checkpoint, const Ops& ops);

}  // namespace kun
