#include "server/answer_bound.h"

#include <fmt/format.h>

#include <algorithm>

namespace kun {
namespace {

// Of an answer's JSON, rounded up from what the writers make of usual vocabularies.
constexpr std::size_t kTextBytes = 8;      // a token's text, escaped
constexpr std::size_t kIdBytes = 8;        // a token's id
constexpr std::size_t kLogprobBytes = 96;  // one token with its probability

std::size_t output_token_bytes(const GenerationFields& fields) {
  std::size_t bytes = kTextBytes;
  if (fields.return_token_ids) bytes += kIdBytes;
  if (fields.wants_logprobs) {
    bytes += kLogprobBytes * static_cast<std::size_t>(fields.sampling.logprob_count + 1);
  }
  return bytes;
}

std::size_t prompt_bytes(const GenerationFields& fields, const JobPrompt& prompt) {
  std::size_t per_token = fields.return_token_ids ? kIdBytes : 0;
  if (fields.prompt_logprob_count >= 0) {
    per_token += kLogprobBytes * static_cast<std::size_t>(fields.prompt_logprob_count + 1);
  }
  return prompt.echo.size() + prompt.tokens.size() * per_token;
}

}  // namespace

std::optional<ApiError> bound_answer(const GenerationFields& fields, std::size_t bytes_max,
                                     std::vector<JobPrompt>& prompts) {
  const auto choices = static_cast<std::size_t>(fields.sample_count);
  const std::size_t per_output = output_token_bytes(fields);
  std::size_t of_prompts = 0;
  std::size_t of_outputs = 0;
  for (const JobPrompt& prompt : prompts) {
    of_prompts += choices * prompt_bytes(fields, prompt);
    of_outputs += choices * per_output * static_cast<std::size_t>(prompt.output_count_max);
  }
  if (of_prompts + of_outputs <= bytes_max) return std::nullopt;
  const std::size_t left = bytes_max - std::min(bytes_max, of_prompts);
  const std::size_t room = left / (choices * per_output * std::max<std::size_t>(1, prompts.size()));
  const auto least = static_cast<std::size_t>(std::max(1, fields.sampling.output_count_min));
  if (fields.max_tokens || room < least) {
    return bad_field(of_prompts > bytes_max ? "prompt_logprobs" : "max_tokens",
                     fmt::format("the answer could have {} bytes, and at most {} are held in one "
                                 "piece; ask for fewer tokens, choices or logprobs, or stream",
                                 of_prompts + of_outputs, bytes_max));
  }
  for (JobPrompt& prompt : prompts) {
    const auto wanted = static_cast<std::size_t>(prompt.output_count_max);
    prompt.output_count_max = static_cast<int>(std::min(wanted, room));
  }
  return std::nullopt;
}

}  // namespace kun
