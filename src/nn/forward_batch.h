// What the layers of a model see of one step.
#pragma once

#include <span>
#include <vector>

#include "base/token.h"
#include "device/attention.h"
#include "plan/batch_plan.h"

namespace kun {

// The bytes behind the block ids: planes[layer][plane], layers numbered as in the model, planes of
// a layer in the order of KV groups.
struct KvStorage {
  std::vector<std::vector<CachePlane>> planes;
};

// One KV group's view of the batch.
struct GroupBatch {
  std::vector<std::int32_t> slots;     // [token]: block * tokens_per_block + offset
  std::vector<AttentionSlice> slices;  // [slice]
};

struct ForwardBatch {
  std::vector<Token> tokens;              // [token], all slices one after the other
  std::vector<std::int32_t> positions;    // [token]
  std::vector<SequenceId> sequences;      // [slice]
  std::vector<GroupBatch> groups;         // [KV group]
  std::vector<std::int32_t> wanted_rows;  // rows of `tokens` whose logits are wanted, ascending
};

}  // namespace kun
