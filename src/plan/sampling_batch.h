// What the sampler needs beside the logits, one row per wanted offset in plan order. It stays on
// the rank that samples; spans point into the scheduler's sequences and hold until the step ends.
#pragma once

#include <span>
#include <vector>

#include "plan/sampling_params.h"

namespace kun {

struct SamplingRow {
  const SamplingParams* params = nullptr;
  std::span<const Token> history;  // prompt and output so far
  std::int32_t prompt_count = 0;   // how much of `history` is prompt
  std::uint32_t choice = 0;        // index among the n choices of a request: decorrelates seeds
  Token given = -1;                // >= 0: how likely this token is; nothing is sampled
  int given_top_count = 0;         // with `given`: the likeliest tokens beside it
};

struct SamplingBatch {
  std::vector<SamplingRow> rows;
};

}  // namespace kun
