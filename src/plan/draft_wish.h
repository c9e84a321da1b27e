// What the scheduler wants to have guessed before it plans a step: the next tokens of sequences
// that are decoding. Whoever guesses (executor/drafter.h) may be wrong; verifying costs time, never
// truth.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "plan/batch_plan.h"
#include "plan/sampling_params.h"

namespace kun {

// Pointers and spans are into the scheduler's sequences and hold until it is told of drafts.
struct DraftWish {
  SequenceId sequence = 0;
  std::uint32_t choice = 0;
  std::span<const Token> history;  // prompt and output so far; not empty
  std::int32_t prompt_count = 0;
  std::int32_t count_max = 1;  // drafts wanted at most
  const SamplingParams* params = nullptr;
  std::string_view cache_salt;  // what is remembered of one salt may not serve another
  std::vector<std::span<const BlockId>> blocks;  // [KV group]: those of all tokens but the last
};

}  // namespace kun
