// What a request allows and forbids token by token: a list of allowed ids, and words whose last
// token becomes impossible once the rest of the word has been said.
#pragma once

#include <span>

#include "plan/sampling_batch.h"

namespace kun {

bool limits_tokens(const SamplingParams& params);

// Makes impossible (minus infinity) what the row's parameters forbid here.
void apply_token_limits(std::span<float> logits, const SamplingRow& row);

}  // namespace kun
