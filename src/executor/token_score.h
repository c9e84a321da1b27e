// How likely a model found a token that was given and not sampled: the logprobs of prompts.
#pragma once

#include <optional>
#include <span>

#include "plan/step_result.h"

namespace kun {

// log softmax over all of `logits`; the `top_count` likeliest of the first `limit` rows (0: all)
// beside it, larger first, then lower ids. nullopt when the row is not finite.
std::optional<SampledToken> score_token(std::span<const float> logits, int limit, Token given,
                                        int top_count);

}  // namespace kun
