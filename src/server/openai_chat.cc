// /v1/chat/completions: reads the request, renders the prompt, and writes answers and chunks in the
// shapes of a chat.
#include <algorithm>
#include <limits>

#include "server/chat_prompt.h"
#include "server/generation_job.h"
#include "server/openai_api.h"
#include "server/openai_request.h"
#include "server/structured_output.h"

namespace kun {
namespace {

void read_logprobs(FieldReader& reader, const ServerLimits& limits, GenerationFields& fields) {
  const bool wanted = reader.boolean("logprobs").value_or(false);
  const auto top = reader.integer("top_logprobs", 0, limits.logprobs_max);
  if (top && *top > 0 && !wanted) {
    reader.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  if (wanted) fields.sampling.logprob_count = static_cast<int>(top.value_or(0));
}

// Returns the name of the field that counts.
std::string_view read_max_tokens(FieldReader& reader, GenerationFields& fields) {
  constexpr auto kMax = std::numeric_limits<int>::max();
  const auto old_name = reader.integer("max_tokens", 1, kMax);
  const auto new_name = reader.integer("max_completion_tokens", 1, kMax);
  if (old_name) fields.max_tokens = static_cast<int>(*old_name);
  if (new_name) fields.max_tokens = static_cast<int>(*new_name);
  return new_name ? "max_completion_tokens" : "max_tokens";
}

}  // namespace

void handle_chat_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  const ServedModel& model = *opened->model;
  const ServerLimits& limits = context.options.limits;
  FieldReader reader(opened->json.root());
  std::optional<ApiError> not_found;
  const std::string name = read_model(reader, model, not_found);
  GenerationFields fields = read_generation_fields(reader, model, limits);
  fields.model = name;
  read_logprobs(reader, limits, fields);
  const std::string_view max_tokens_name = read_max_tokens(reader, fields);
  reader.refuse({"audio", "functions", "function_call", "prediction", "web_search_options", "echo",
                 "verbosity"});
  reader.ignore({"parallel_tool_calls", "modalities", "include_reasoning", "separate_reasoning",
                 "stream_reasoning"});
  const ChatPrompt chat = read_chat_prompt(reader, context);
  if (not_found) return respond_error(exchange, *not_found);
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());

  const Result<std::string> text = render_chat(model, chat);
  if (!text) {
    ApiError error = error_from(text.error());
    error.param = "messages";
    return respond_error(exchange, error);
  }
  fields.thoughts_end = thoughts_end(*text);
  JobPrompt prompt;
  prompt.tokens = model.tokenizer->encode(*text, chat.add_special_tokens);
  if (auto error = fit_context(model, fields, std::nullopt, max_tokens_name, prompt.tokens,
                               prompt.output_count_max)) {
    if (error->param == "prompt") error->param = "messages";
    return respond_error(exchange, *error);
  }
  if (prompt.tokens.empty()) {
    return respond_error(exchange, bad_field("messages", "the messages render to nothing"));
  }
  AnswerFormat::Options format;
  format.tokenizer = model.tokenizer;
  format.logprobs = fields.sampling.logprob_count >= 0;
  format.token_ids = fields.return_token_ids;
  GenerationJob::Setup setup;
  setup.model = opened->model;
  setup.fields = std::move(fields);
  setup.prompts.push_back(std::move(prompt));
  setup.format = std::make_unique<const ChatFormat>(format);
  GenerationJob::start(context, exchange, std::move(setup));
}

}  // namespace kun
