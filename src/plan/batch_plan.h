// The one contract between the scheduler (which decides) and the workers (which compute).
//
// A BatchPlan is plain data, rebuilt from nothing every step: no pointers into the scheduler, so
// the same value runs on a local worker or travels as bytes to every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "base/token.h"
#include "plan/pooling.h"

namespace kun {

using BlockId = std::int32_t;
using SequenceId = std::uint64_t;

// In a table: the block was given back, since no token that is still to come reads it.
constexpr BlockId kNoBlock = -1;

// The next few tokens of one sequence. A prompt chunk and a decode step differ only in length.
struct PlanSlice {
  SequenceId sequence = 0;
  std::int32_t first_position = 0;  // position of tokens[0] in the sequence
  std::vector<Token> tokens;        // 1 for decode, more for a prompt chunk
  // [KV group][block]: from position 0 on; of a group with a window the first may be kNoBlock.
  std::vector<std::vector<BlockId>> blocks;
  // Offsets in `tokens` whose logits are sampled, ascending. An offset may repeat: the n choices of
  // a request sample their first tokens from the one last row of the prompt.
  std::vector<std::int32_t> wanted;
  // The last tokens are guesses of what will be sampled, to be verified in this step: each row
  // before the last wanted one stands before a draft. Only slices of one choice have any.
  std::int32_t draft_count = 0;
  std::uint32_t choice = 0;  // which of the choices of `sequence` this is; for traces
  // Not kNone: the hidden states of `wanted` are summed up, and nothing is sampled.
  Pooling pooling = Pooling::kNone;
};

// Copies the cache of one block to another before anything else in the step reads or writes. No
// block is the target of two copies, or source and target: they may run in any order.
struct BlockCopy {
  int group = 0;
  BlockId from = 0;
  BlockId to = 0;
};

struct BatchPlan {
  std::uint64_t step = 0;
  std::vector<BlockCopy> block_copies;
  std::vector<PlanSlice> slices;

  bool empty() const { return slices.empty() && block_copies.empty(); }
};

}  // namespace kun
