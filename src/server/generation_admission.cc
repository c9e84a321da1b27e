// The part of a GenerationJob that asks whether it may be: there must be memory for what it may
// need, and a request whose time is over before it said anything is an error.
#include <algorithm>

#include "server/answer_bound.h"
#include "server/api_error.h"
#include "server/generation_job.h"
#include "server/openai_request.h"
#include "server/request_memory.h"

namespace kun {

void GenerationJob::start(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                          Setup setup) {
  if (!setup.fields.stream) {
    if (const auto error =
            bound_answer(setup.fields, context.options.limits.answer_bytes_max, setup.prompts)) {
      return respond_error(exchange, *error);
    }
  }
  std::optional<MemoryHold> memory =
      hold_for_request(context, exchange, expected_bytes(setup.fields, setup.prompts));
  if (!memory) return;
  const auto job =
      std::make_shared<GenerationJob>(context, exchange, std::move(setup), *std::move(memory));
  exchange->set_listener(job);
  job->run();
}

// Nothing has been said yet, by any choice.
bool GenerationJob::silent() const {
  return std::ranges::all_of(choices_, [](const Choice& c) { return c.output_count == 0; });
}

}  // namespace kun
