// How large an answer in one piece can become, before anything is generated: a stream waits for its
// client, but such an answer is held in memory until it is whole.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "server/api_error.h"
#include "server/generation_fields.h"
#include "server/generation_job.h"

namespace kun {

// Refuses what would be larger than `bytes_max`. Where the request leaves open how many tokens to
// generate, it gets as many as fit.
std::optional<ApiError> bound_answer(const GenerationFields& fields, std::size_t bytes_max,
                                     std::vector<JobPrompt>& prompts);

}  // namespace kun
