// /v1/chat/completions and DeepSeek's /chat/completions: reads the request, and starts a chat whose
// answers are written in OpenAI's or DeepSeek's shape.
#include <algorithm>
#include <limits>

#include "server/chat_generation.h"
#include "server/chat_writer.h"
#include "server/openai_api.h"
#include "server/openai_request.h"
#include "server/tool_grammar.h"

namespace kun {
namespace {

void read_logprobs(FieldReader& reader, const ServerLimits& limits, GenerationFields& fields) {
  const bool wanted = reader.boolean("logprobs").value_or(false);
  const auto top = reader.integer("top_logprobs", 0, limits.logprobs_max);
  if (top && *top > 0 && !wanted) {
    reader.fail("top_logprobs", "top_logprobs needs logprobs to be true");
  }
  fields.wants_logprobs = wanted;
  if (wanted) fields.sampling.logprob_count = static_cast<int>(top.value_or(0));
}

// Returns the name of the field that counts.
std::string_view read_max_tokens(FieldReader& reader, GenerationFields& fields) {
  constexpr auto kMax = std::numeric_limits<int>::max();
  const auto old_name = reader.integer("max_tokens", 1, kMax);
  const auto new_name = reader.integer("max_completion_tokens", 1, kMax);
  fields.max_tokens = read_n_predict(reader);
  if (old_name) fields.max_tokens = static_cast<int>(*old_name);
  if (new_name) fields.max_tokens = static_cast<int>(*new_name);
  return new_name ? "max_completion_tokens" : "max_tokens";
}

// vLLM and OpenAI agree on what cannot be had here.
void refuse_or_ignore(FieldReader& reader) {
  reader.refuse({"audio", "functions", "function_call", "web_search_options", "moderation"});
  if (reader.object("web_search_options")) {  // without options it asks for a search, too
    reader.fail("web_search_options", "web_search_options is not supported by this server");
  }
  // Hints: how wordy the model shall be, and what the answer may look like.
  static_cast<void>(reader.word("verbosity", {"low", "medium", "high"}));
  reader.ignore({"prediction", "stream_reasoning"});
  const auto modalities = reader.array("modalities", 8);
  for (std::size_t i = 0; modalities && i < modalities->size(); ++i) {
    const JsonView modality = modalities->at(i);
    if (modality.is(JsonView::Kind::kString) && modality.string() == "text") continue;
    reader.fail("modalities", "this model answers in text only");
  }
}

std::optional<ToolCallFormat> call_format(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kNone: return std::nullopt;
    case ToolSyntax::kDeepSeekV3: return ToolCallFormat::kDeepSeekV3;
    case ToolSyntax::kDeepSeekV31: return ToolCallFormat::kDeepSeekV31;
    case ToolSyntax::kDeepSeekV32: return ToolCallFormat::kDeepSeekV32;
    case ToolSyntax::kDeepSeekV4: return ToolCallFormat::kDeepSeekV4;
    case ToolSyntax::kHermes: return ToolCallFormat::kHermes;
    case ToolSyntax::kLlama3Json: return ToolCallFormat::kLlama3Json;
  }
  return std::nullopt;
}

// tool_choice "required" or a function by name: a grammar lets nothing but calls through.
void force_call(FieldReader& reader, const ServedModel& model, ChatRequest& request) {
  const ChatTools& tools = request.chat.tools;
  const auto format = call_format(model.syntax.tools);
  if (!format) {
    return reader.fail("tool_choice",
                       "this model's way of calling tools is not known, so that a "
                       "call cannot be forced; see --tool-call-parser");
  }
  if (request.fields.beams.width > 0) {
    return reader.fail("tool_choice", "a call cannot be forced in a beam search");
  }
  if (request.fields.grammar) {
    return reader.fail("tool_choice",
                       "a call cannot be forced beside response_format or "
                       "structured_outputs");
  }
  std::vector<ToolSchema> schemas;
  for (const ChatTool& tool : tools.all) schemas.push_back({tool.name, tool.parameters});
  ToolChoice choice;
  choice.name = tools.chosen;
  choice.parallel = tools.parallel && tools.choice == ToolUse::kRequired;
  Result<GrammarSource> grammar = grammar_for_tools(schemas, choice, *format, *model.tokenizer);
  if (!grammar) return reader.fail("tools", grammar.error().message());
  request.fields.grammar = *std::move(grammar);
  request.fields.grammar_field = "tools";
}

// tool_choice "auto": the model calls or answers. Where calls of strict tools must validate, or the
// answer must have a format, a grammar sees to both. A grammar of the client's own says itself what
// may be said, calls included.
void allow_calls(FieldReader& reader, const ServedModel& model, ChatRequest& request) {
  const ChatTools& tools = request.chat.tools;
  const auto format = call_format(model.syntax.tools);
  std::optional<GrammarSource>& grammar = request.fields.grammar;
  const bool strict = std::ranges::any_of(tools.all, &ChatTool::strict);
  if (!format || (!grammar && !strict)) return;
  if (grammar && grammar->kind == GrammarKind::kLark) return;
  if (request.fields.beams.width > 0) {
    return reader.fail("tools", "calls of strict tools cannot be had in a beam search");
  }
  std::vector<ToolSchema> schemas;
  for (const ChatTool& tool : tools.all) {
    schemas.push_back({tool.name, tool.parameters, !tool.strict});
  }
  ToolChoice choice;
  choice.parallel = tools.parallel;
  choice.other = grammar ? OtherAnswer::kFormat : OtherAnswer::kText;
  choice.format = grammar ? &*grammar : nullptr;
  Result<GrammarSource> both = grammar_for_tools(schemas, choice, *format, *model.tokenizer);
  if (!both) return reader.fail("tools", both.error().message());
  request.fields.grammar_lets_talk = choice.other == OtherAnswer::kText;
  if (!grammar) request.fields.grammar_field = "tools";
  grammar = *std::move(both);
}

}  // namespace

ChatRequest read_chat_request(FieldReader& reader, const ServerContext& context,
                              const ServedModel& model, Dialect dialect,
                              std::optional<ApiError>& not_found) {
  ChatRequest request;
  const ServerLimits& limits = context.options.limits;
  const std::string name = read_model(reader, model, not_found);
  request.fields = read_generation_fields(reader, model, limits);
  request.fields.model = name;
  read_logprobs(reader, limits, request.fields);
  request.max_tokens_name = read_max_tokens(reader, request.fields);
  request.fields.include_reasoning = reader.boolean("include_reasoning").value_or(true);
  request.fields.separate_reasoning = reader.boolean("separate_reasoning").value_or(true);
  refuse_or_ignore(reader);
  const bool echo = reader.boolean("echo").value_or(false);
  request.chat = read_chat_prompt(reader, context, model, dialect);
  if (!echo) request.chat.echo.clear();
  if (request.chat.tools.wanted() && !reader.failed()) {
    (request.chat.tools.forced() ? force_call : allow_calls)(reader, model, request);
  }
  return request;
}

void handle_chat_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  FieldReader reader(opened->json.root());
  std::optional<ApiError> not_found;
  ChatRequest request =
      read_chat_request(reader, context, *opened->model, exchange->request().dialect, not_found);
  if (not_found) return respond_error(exchange, *not_found);
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());
  ChatGeneration generation;
  generation.model = opened->model;
  generation.writer =
      std::make_unique<ChatWriter>(ChatWriter::Options{request.fields.include_reasoning});
  generation.fields = std::move(request.fields);
  generation.chat = std::move(request.chat);
  generation.max_tokens_name = request.max_tokens_name;
  start_chat(context, exchange, std::move(generation));
}

}  // namespace kun
