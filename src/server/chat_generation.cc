#include "server/chat_generation.h"

#include "server/generation_job.h"
#include "server/openai_request.h"

namespace kun {
namespace {

std::unique_ptr<const AnswerParserOptions> parser_options(const ServedModel& model,
                                                          const GenerationFields& fields,
                                                          const ChatPrompt& chat,
                                                          ReasoningStart start) {
  AnswerParserOptions options;
  if (fields.separate_reasoning) options.syntax.reasoning = model.syntax.reasoning;
  if (chat.tools.wanted()) options.syntax.tools = model.syntax.tools;
  if (options.syntax.reasoning == ReasoningSyntax::kNone &&
      options.syntax.tools == ToolSyntax::kNone) {
    return nullptr;
  }
  options.start = start;
  for (const ChatTool& tool : chat.tools.all) options.tool_names.push_back(tool.name);
  options.calls_max = chat.tools.parallel && chat.tools.choice != ToolUse::kNamed ? 0 : 1;
  return std::make_unique<const AnswerParserOptions>(std::move(options));
}

}  // namespace

Result<std::vector<Token>> chat_tokens(const ServedModel& model, const ChatPrompt& chat,
                                       ReasoningStart& start) {
  ASSIGN_OR_RETURN(const RenderedChat rendered, render_chat(model, chat));
  start = rendered.start;
  std::vector<Token> tokens = model.tokenizer->encode(rendered.text, chat.add_special_tokens);
  if (tokens.empty()) return invalid_argument("the messages render to nothing");
  return tokens;
}

void start_chat(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                ChatGeneration generation) {
  const ServedModel& model = *generation.model;
  ReasoningStart start = ReasoningStart::kUndecided;
  Result<std::vector<Token>> tokens = chat_tokens(model, generation.chat, start);
  if (!tokens) {
    ApiError error = error_from(tokens.error());
    error.param = generation.messages_name;
    error.malformed = true;
    return respond_error(exchange, error);
  }
  JobPrompt prompt;
  prompt.tokens = *std::move(tokens);
  prompt.echo = std::move(generation.chat.echo);
  if (auto error = fit_context(model, generation.fields, std::nullopt, generation.max_tokens_name,
                               prompt.tokens, prompt.output_count_max)) {
    if (error->param == "prompt") error->param = generation.messages_name;
    return respond_error(exchange, *error);
  }
  if (generation.fields.grammar) {
    // Thoughts that the prompt has opened are free; where it has not, the grammar holds from the
    // first token on, and there are none.
    generation.fields.thoughts_first = start == ReasoningStart::kOpen;
    if (start == ReasoningStart::kUndecided && !generation.fields.grammar_lets_talk) {
      start = ReasoningStart::kClosed;
    }
  }
  if (!generation.fields.thinking_token_budget) {
    generation.fields.thinking_token_budget = generation.chat.thinking_budget;
  }
  const bool thinks_unasked = model.syntax.reasoning == ReasoningSyntax::kDeepSeekR1;
  const bool undecided = start == ReasoningStart::kUndecided;
  prompt.start = thinks_unasked && undecided ? ReasoningStart::kOpen : start;
  GenerationJob::Setup setup;
  setup.parser = parser_options(model, generation.fields, generation.chat, start);
  setup.model = std::move(generation.model);
  setup.fields = std::move(generation.fields);
  setup.prompts.push_back(std::move(prompt));
  setup.writer = std::move(generation.writer);
  GenerationJob::start(context, exchange, std::move(setup));
}

}  // namespace kun
