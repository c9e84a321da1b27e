// What a request is expected to need of memory, from its tokens to its answer: a reckoning on the
// safe side, for the ledger.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "base/memory_ledger.h"
#include "server/generation_fields.h"
#include "server/server_context.h"

namespace kun {

struct JobPrompt;

std::size_t expected_bytes(const GenerationFields& fields, std::span<const JobPrompt> prompts);

// Of a request whose inputs, so many tokens together, become vectors of `width` numbers. `shown`:
// in the answer.
std::size_t expected_bytes_of_vectors(std::size_t token_count, std::size_t input_count,
                                      std::size_t width, bool shown);

// Answers 503, or 413 where it could never be, itself when it gives nothing.
std::optional<MemoryHold> hold_for_request(ServerContext& context,
                                           const std::shared_ptr<Exchange>& exchange,
                                           std::size_t bytes);

}  // namespace kun
