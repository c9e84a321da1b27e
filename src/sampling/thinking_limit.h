// The end of a thought that has used up its tokens. What is forced is a function of the row alone,
// like everything that is sampled, so that drafts, preemption and company change nothing.
#pragma once

#include <optional>

#include "plan/sampling_batch.h"

namespace kun {

// The token that must come here, whatever the logits say: the next one of the sequence that closes
// thoughts, once the thought under way has as many tokens as it may have.
std::optional<Token> forced_token(const SamplingRow& row);

}  // namespace kun
