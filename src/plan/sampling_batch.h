// What the sampler needs beside the logits, one row per wanted offset in plan order. It stays on
// the rank that samples; spans point into the scheduler's sequences and hold until the step ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/sampling_params.h"
#include "plan/token_constraint.h"

namespace kun {

inline constexpr Token kNoDraft = -1;

struct SamplingRow {
  const SamplingParams* params = nullptr;
  std::span<const Token> history;  // prompt and output so far
  std::int32_t prompt_count = 0;   // how much of `history` is prompt
  std::uint32_t choice = 0;        // index among the n choices of a request: decorrelates seeds
  // What was guessed to be sampled here; the rows of a slice behind a wrong guess mean nothing.
  Token draft = kNoDraft;
  Token given = -1;         // >= 0: how likely this token is; nothing is sampled
  int given_top_count = 0;  // with `given`: the likeliest tokens beside it
  int candidate_count = 0;  // > 0: so many of the likeliest possible tokens; nothing is sampled

  // Rows of one sequence share it. Whoever supplies the batch turns it into a mask: bit i % 32 of
  // word i / 32 tells whether token i is possible, end tokens included. Empty: all are.
  TokenConstraint* constraint = nullptr;
  std::span<const Token> end_tokens{};  // what may end the sequence; given with a constraint
  std::span<const std::uint32_t> mask{};
  Status mask_status{};  // why there is no mask; all its bits are 0 then
};

struct SamplingBatch {
  std::vector<SamplingRow> rows;
};

}  // namespace kun
