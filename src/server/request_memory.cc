#include "server/request_memory.h"

#include <algorithm>

#include "server/generation_job.h"
#include "server/openai_request.h"

namespace kun {
namespace {

constexpr std::size_t kRequestBytes = 16U << 10U;  // the job, its writer, its connection's buffers
constexpr std::size_t kChoiceBytes = 4U << 10U;
constexpr std::size_t kTokenBytes = 64;  // ids on both sides of the engine, text, JSON
// A likelihood: as a number, and as JSON, whose text is copied while it grows.
constexpr std::size_t kScoreBytes = 24;
constexpr std::size_t kScoreJsonBytes = 96;
// A number of a vector: as the engine sums it up and hands it over, and as JSON, copied likewise.
constexpr std::size_t kNumberBytes = sizeof(double) + sizeof(float);
constexpr std::size_t kNumberJsonBytes = 28;
constexpr std::size_t kOutputsMax = 1U << 12U;  // longer outputs are rare, and reckoned as such

}  // namespace

std::size_t expected_bytes(const GenerationFields& fields, std::span<const JobPrompt> prompts) {
  const auto choices = static_cast<std::size_t>(std::max(fields.sample_count, 1));
  const auto scores = [](bool wanted, int top_count, std::size_t times_shown) {
    const auto count = static_cast<std::size_t>(std::max(top_count, 0)) + 1;
    return wanted ? count * (kScoreBytes + kScoreJsonBytes * times_shown) : 0;
  };
  const std::size_t per_output =
      kTokenBytes + scores(fields.wants_logprobs, fields.sampling.logprob_count, 1);
  // With `echo` each choice repeats what is known of the prompt.
  const std::size_t per_prompt_token =
      kTokenBytes / 2 + sizeof(Token) * choices +
      scores(fields.prompt_logprob_count >= 0, fields.prompt_logprob_count, choices);
  std::size_t bytes = kRequestBytes;
  for (const JobPrompt& prompt : prompts) {
    const auto outputs =
        std::min(static_cast<std::size_t>(std::max(prompt.output_count_max, 1)), kOutputsMax);
    bytes += prompt.tokens.size() * per_prompt_token;
    bytes += choices * (kChoiceBytes + 2 * prompt.echo.size() + outputs * per_output);
  }
  return bytes;
}

std::size_t expected_bytes_of_vectors(std::size_t token_count, std::size_t input_count,
                                      std::size_t width, bool shown) {
  const std::size_t per_number = kNumberBytes + (shown ? kNumberJsonBytes : 0);
  return kRequestBytes + token_count * (kTokenBytes / 2 + sizeof(Token)) +
         input_count * (kChoiceBytes + width * per_number);
}

std::optional<MemoryHold> hold_for_request(ServerContext& context,
                                           const std::shared_ptr<Exchange>& exchange,
                                           std::size_t bytes) {
  if (context.memory.try_hold(MemoryUse::kRequests, bytes)) {
    return MemoryHold(context.memory, MemoryUse::kRequests, bytes);
  }
  respond_error(exchange, memory_error(context.memory, bytes));
  return std::nullopt;
}

}  // namespace kun
