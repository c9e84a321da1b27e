// What the sampler needs beside the logits, one row per wanted offset in plan order. It stays on
// the rank that samples; spans point into the scheduler's sequences and hold until the step ends.
#pragma once

#include <span>
#include <vector>

#include "plan/sampling_params.h"

namespace kun {

inline constexpr Token kNoDraft = -1;

struct SamplingRow {
  const SamplingParams* params = nullptr;
  std::span<const Token> history;  // prompt and output so far
  std::int32_t prompt_count = 0;   // how much of `history` is prompt
  std::uint32_t choice = 0;        // index among the n choices of a request: decorrelates seeds
  // What was guessed to be sampled here; the rows of a slice behind a wrong guess mean nothing.
  Token draft = kNoDraft;
};

struct SamplingBatch {
  std::vector<SamplingRow> rows;
};

}  // namespace kun
