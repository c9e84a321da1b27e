// What the layers of a model see of one step.
#pragma once

#include <span>
#include <vector>

#include "base/token.h"
#include "device/attention.h"
#include "plan/batch_plan.h"
#include "tensor/tensor_view.h"

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
  std::vector<std::int32_t> wanted_rows;  // rows of `tokens` whose hidden states are wanted

  // For models with a next-token module alone; empty for others.
  std::vector<std::int32_t> kept_rows;  // rows whose hidden states are wanted for later guesses
  ConstTensorView before;          // [slice, hidden] F32: of the token before each slice's first
  std::vector<bool> before_known;  // [slice]: whether that row means anything
  bool entries_later = false;      // the module's entries are made by Model::make_guess_entries()
};

// What a model's next-token module is to guess from: tokens of sequences whose earlier tokens have
// their entries in the module's cache.
struct GuessBatch {
  std::vector<Token> tokens;            // [row]: what follows them is to be guessed
  std::vector<std::int32_t> positions;  // [row], 1 at least
  GroupBatch group;                     // the module's KV group; entries alone need no slices
  ConstTensorView before;               // [row, hidden] F32: hidden state of the token before
};

}  // namespace kun
