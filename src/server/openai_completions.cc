// /v1/completions: reads the request, whose prompt may be text, ids or several of either, and
// writes answers and chunks in the shapes of a completion.
#include <fmt/format.h>

#include <limits>

#include "server/generation_job.h"
#include "server/openai_api.h"
#include "server/openai_request.h"

namespace kun {
namespace {

using Kind = JsonView::Kind;

constexpr int kDefaultMaxTokens = 16;  // OpenAI's

class PromptReader {
 public:
  PromptReader(FieldReader& reader, const ServedModel& model, const ServerLimits& limits,
               bool add_special_tokens)
      : reader_(reader), model_(model), limits_(limits), add_special_tokens_(add_special_tokens) {}

  // A string, strings, token ids, or arrays of token ids.
  std::vector<JobPrompt> read() {
    const auto prompt = reader_.any("prompt");
    if (!prompt) {
      reader_.fail("prompt", "prompt is missing");
      return {};
    }
    if (prompt->is(Kind::kString)) {
      add_text(prompt->string());
    } else if (prompt->is(Kind::kArray) && prompt->size() > 0) {
      read_array(*prompt);
    } else {
      reader_.fail("prompt",
                   "prompt must be a string, an array of strings, an array of token ids "
                   "or an array of such arrays, and not empty");
    }
    return std::move(prompts_);
  }

 private:
  void read_array(JsonView array) {
    if (as_integer(array.at(0))) return add_ids(array);
    if (array.size() > static_cast<std::size_t>(limits_.prompts_max)) {
      return reader_.fail("prompt", fmt::format("there are {} prompts, at most {} are accepted",
                                                array.size(), limits_.prompts_max));
    }
    for (std::size_t i = 0; i < array.size() && !reader_.failed(); ++i) {
      const JsonView element = array.at(i);
      if (element.is(Kind::kString)) {
        add_text(element.string());
      } else if (element.is(Kind::kArray)) {
        add_ids(element);
      } else {
        reader_.fail("prompt", fmt::format("prompt[{}] must be a string or token ids", i));
      }
    }
  }

  void add_text(std::string_view text) {
    JobPrompt prompt;
    prompt.tokens = model_.tokenizer->encode(text, add_special_tokens_);
    prompt.echo = text;
    add(std::move(prompt));
  }

  void add_ids(JsonView ids) {
    JobPrompt prompt;
    const int vocabulary_size = model_.tokenizer->vocabulary_size();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto id = as_integer(ids.at(i));
      if (!id || *id < 0 || *id >= vocabulary_size) {
        return reader_.fail("prompt", fmt::format("prompt has an element that is no token id "
                                                  "between 0 and {}",
                                                  vocabulary_size - 1));
      }
      prompt.tokens.push_back(static_cast<Token>(*id));
    }
    prompt.echo = model_.tokenizer->decode(prompt.tokens, true);
    add(std::move(prompt));
  }

  void add(JobPrompt prompt) {
    if (prompt.tokens.empty()) return reader_.fail("prompt", "a prompt must not be empty");
    prompts_.push_back(std::move(prompt));
  }

  FieldReader& reader_;
  const ServedModel& model_;
  const ServerLimits& limits_;
  const bool add_special_tokens_;
  std::vector<JobPrompt> prompts_;
};

}  // namespace

void handle_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  const ServedModel& model = *opened->model;
  const ServerLimits& limits = context.options.limits;
  FieldReader reader(opened->json.root());
  std::optional<ApiError> not_found;
  const std::string name = read_model(reader, model, not_found);
  GenerationFields fields = read_generation_fields(reader, model, limits);
  fields.model = name;
  if (const auto count = reader.integer("logprobs", 0, limits.logprobs_max)) {
    fields.sampling.logprob_count = static_cast<int>(*count);
  }
  if (const auto count = reader.integer("max_tokens", 1, std::numeric_limits<int>::max())) {
    fields.max_tokens = static_cast<int>(*count);
  }
  if (const auto count = reader.integer("best_of", 1, limits.choices_max);
      count && *count != fields.choice_count) {
    reader.fail("best_of", "best_of other than n is not supported by this server");
  }
  const bool echo = reader.boolean("echo").value_or(false);
  if (echo && fields.sampling.logprob_count >= 0) {
    reader.fail("logprobs", "logprobs of an echoed prompt are not supported by this server");
  }
  if (reader.string("suffix", limits.body_bytes_max)) {
    reader.fail("suffix", "suffix is not currently supported");
  }
  reader.refuse({"tools", "tool_choice"});
  const bool add_special = reader.boolean("add_special_tokens").value_or(true);
  std::vector<JobPrompt> prompts;
  if (!reader.failed() && !not_found) {
    prompts = PromptReader(reader, model, limits, add_special).read();
  }
  if (prompts.size() * static_cast<std::size_t>(fields.choice_count) >
      static_cast<std::size_t>(limits.prompts_max)) {
    reader.fail("n", fmt::format("prompts times n is more than {}", limits.prompts_max));
  }
  if (not_found) return respond_error(exchange, *not_found);
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());
  for (JobPrompt& prompt : prompts) {
    if (!echo) prompt.echo.clear();
    if (const auto error = fit_context(model, fields, kDefaultMaxTokens, "max_tokens",
                                       prompt.tokens, prompt.output_count_max)) {
      return respond_error(exchange, *error);
    }
  }
  AnswerFormat::Options format;
  format.tokenizer = model.tokenizer;
  format.logprobs = fields.sampling.logprob_count >= 0;
  format.token_ids = fields.return_token_ids;
  GenerationJob::Setup setup;
  setup.model = opened->model;
  setup.fields = std::move(fields);
  setup.prompts = std::move(prompts);
  setup.format = std::make_unique<const CompletionFormat>(format);
  GenerationJob::start(context, exchange, std::move(setup));
}

}  // namespace kun
