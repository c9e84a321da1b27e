// /v1/completions: reads the request, whose prompt may be text, ids or several of either, and
// writes answers and chunks in the shapes of a completion.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "server/completion_writer.h"
#include "server/fill_in.h"
#include "server/generation_job.h"
#include "server/openai_api.h"
#include "server/openai_request.h"
#include "server/text_inputs.h"

namespace kun {
namespace {

constexpr int kDefaultMaxTokens = 16;  // OpenAI's

class PromptReader {
 public:
  PromptReader(FieldReader& reader, const ServedModel& model, const ServerLimits& limits,
               const CompletionRequest& request)
      : reader_(reader), model_(model), limits_(limits), request_(request) {}

  std::vector<JobPrompt> read() {
    if (!request_.prompt) {
      reader_.fail("prompt", "prompt is missing");
      return {};
    }
    for (TextInput& input :
         read_text_inputs(reader_, "prompt", *request_.prompt, limits_.prompts_max,
                          model_.tokenizer->vocabulary_size())) {
      if (reader_.failed()) return {};
      if (input.text) {
        add_text(*input.text);
      } else {
        add_ids(std::move(input.ids));
      }
    }
    return std::move(prompts_);
  }

 private:
  void add_text(std::string_view text) {
    JobPrompt prompt;
    prompt.echo = text;
    prompt.start = reasoning_start(text);
    if (request_.suffix) {
      auto tokens =
          fill_in_tokens(*model_.tokenizer, text, *request_.suffix, request_.add_special_tokens);
      if (!tokens)
        return reader_.fail("suffix",
                            "this model cannot fill in between a prompt and a "
                            "suffix: it has no tokens for that");
      prompt.tokens = *std::move(tokens);
    } else {
      prompt.tokens = model_.tokenizer->encode(text, request_.add_special_tokens);
    }
    add(std::move(prompt));
  }

  void add_ids(std::vector<Token> ids) {
    if (request_.suffix) return reader_.fail("suffix", "suffix needs a prompt of text");
    JobPrompt prompt;
    prompt.tokens = std::move(ids);
    prompt.echo = model_.tokenizer->decode(prompt.tokens, true);
    prompt.start = reasoning_start(model_.tokenizer->decode(prompt.tokens, false));
    add(std::move(prompt));
  }

  void add(JobPrompt prompt) {
    if (prompt.tokens.empty()) return reader_.fail("prompt", "a prompt must not be empty");
    if (!request_.echo) prompt.echo.clear();
    prompts_.push_back(std::move(prompt));
  }

  FieldReader& reader_;
  const ServedModel& model_;
  const ServerLimits& limits_;
  const CompletionRequest& request_;
  std::vector<JobPrompt> prompts_;
};

// Returns the name of the field that counts.
std::string_view read_sizes(FieldReader& reader, const ServerLimits& limits,
                            GenerationFields& fields) {
  if (const auto count = reader.integer("logprobs", 0, limits.logprobs_max)) {
    fields.sampling.logprob_count = static_cast<int>(*count);
    fields.wants_logprobs = true;
  }
  constexpr auto kMax = std::numeric_limits<int>::max();
  fields.max_tokens = read_n_predict(reader);
  const auto new_name = reader.integer("max_completion_tokens", 0, kMax);
  const auto old_name = reader.integer("max_tokens", 0, kMax);
  if (const auto count = new_name ? new_name : old_name) {
    // To read a prompt and say nothing is to say one token and drop it.
    fields.drops_output = *count == 0;
    fields.max_tokens = std::max(1, static_cast<int>(*count));
  }
  return new_name ? "max_completion_tokens" : "max_tokens";
}

}  // namespace

CompletionRequest read_completion_request(FieldReader& reader, const ServerContext& context,
                                          const ServedModel& model,
                                          std::optional<ApiError>& not_found) {
  CompletionRequest request;
  const ServerLimits& limits = context.options.limits;
  const std::string name = read_model(reader, model, not_found);
  request.fields = read_generation_fields(reader, model, limits);
  request.fields.model = name;
  request.max_tokens_name = read_sizes(reader, limits, request.fields);
  request.echo = reader.boolean("echo").value_or(false);
  request.prompt_logprobs = request.fields.prompt_logprob_count >= 0;
  if (request.echo && request.fields.wants_logprobs) {
    request.fields.prompt_logprob_count =
        std::max(request.fields.prompt_logprob_count, request.fields.sampling.logprob_count);
  }
  if (const auto suffix = reader.string("suffix", limits.body_bytes_max);
      suffix && !suffix->empty()) {
    request.suffix = *suffix;
    if (request.echo) reader.fail("echo", "echo and suffix exclude each other");
  }
  reader.refuse({"tools", "tool_choice"});
  request.add_special_tokens = reader.boolean("add_special_tokens").value_or(true);
  request.prompt = reader.any("prompt");
  return request;
}

void handle_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  const ServedModel& model = *opened->model;
  const ServerLimits& limits = context.options.limits;
  FieldReader reader(opened->json.root());
  std::optional<ApiError> not_found;
  CompletionRequest request = read_completion_request(reader, context, model, not_found);
  if (not_found) return respond_error(exchange, *not_found);
  std::vector<JobPrompt> prompts;
  if (!reader.failed()) prompts = PromptReader(reader, model, limits, request).read();
  if (prompts.size() * static_cast<std::size_t>(request.fields.sample_count) >
      static_cast<std::size_t>(limits.prompts_max)) {
    reader.fail("n", fmt::format("prompts times n is more than {}", limits.prompts_max));
  }
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());
  for (JobPrompt& prompt : prompts) {
    if (const auto error =
            fit_context(model, request.fields, kDefaultMaxTokens, request.max_tokens_name,
                        prompt.tokens, prompt.output_count_max)) {
      return respond_error(exchange, *error);
    }
  }
  GenerationJob::Setup setup;
  setup.model = opened->model;
  setup.prompts = std::move(prompts);
  setup.writer = std::make_unique<CompletionWriter>(
      CompletionWriter::Options{request.echo, request.prompt_logprobs});
  setup.fields = std::move(request.fields);
  GenerationJob::start(context, exchange, std::move(setup));
}

}  // namespace kun
