#include "server/small_routes.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "server/chat_prompt.h"
#include "server/generation_fields.h"
#include "server/json_writer.h"
#include "server/memory_metrics.h"
#include "server/openai_request.h"

namespace kun {
namespace {

void respond_json(const std::shared_ptr<Exchange>& exchange, JsonWriter& json) {
  HttpResponse response;
  response.body = json.take();
  exchange->respond(std::move(response));
}

void write_model(JsonWriter& json, const ServedModel& model, std::string_view name) {
  json.begin_object();
  json.key("id").string(name).key("object").string("model");
  json.key("created").integer(model.created).key("owned_by").string("kun");
  json.key("root").string(model.root.empty() ? name : std::string_view(model.root));
  json.key("parent").null();
  json.key("max_model_len").integer(model.context_length);
  json.key("permission").begin_array().end_array();
  json.end_object();
}

// Anthropic's clients name the version of its API in every request; its models have other members.
bool speaks_anthropic(const Exchange& exchange) {
  return !exchange.request().header("anthropic-version").empty();
}

void write_anthropic_model(JsonWriter& json, const ServedModel& model, std::string_view name) {
  json.begin_object().key("type").string("model");
  json.key("id").string(name).key("display_name").string(name);
  const auto created = static_cast<std::time_t>(model.created);
  json.key("created_at").string(fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(created)));
  json.key("lifecycle").string("active");
  json.key("max_input_tokens").integer(model.context_length);
  json.key("max_tokens").integer(model.context_length);
  json.end_object();
}

void write_anthropic_models(JsonWriter& json, const ServedModel& model) {
  json.begin_object().key("data").begin_array();
  for (const std::string& name : model.names) write_anthropic_model(json, model, name);
  json.end_array().key("has_more").boolean(false);
  json.key("first_id").string(model.names.front());
  json.key("last_id").string(model.names.back()).end_object();
}

// What follows the last of the route's fixed part in "/v1/models/NAME".
std::string name_in_path(std::string_view path) {
  constexpr std::string_view kRoute = "/models/";
  const std::size_t at = path.find(kRoute);
  if (at == std::string_view::npos) return {};
  return percent_decode(path.substr(at + kRoute.size()));
}

// The text whose tokens are asked for. A problem is left in `reader`.
std::string tokenize_text(FieldReader& reader, const ServedModel& model,
                          const TokenizeRequest& request) {
  if (request.prompt) return *request.prompt;
  if (reader.failed()) return {};
  Result<RenderedChat> rendered = render_chat(model, request.chat);
  if (rendered) return std::move(rendered->text);
  reader.fail("messages", rendered.error().message());
  return {};
}

}  // namespace

void handle_models(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  if (const auto error = not_ready(context)) return respond_error(exchange, *error);
  const auto model = context.model();
  JsonWriter json;
  if (speaks_anthropic(*exchange) && !model->names.empty()) {
    write_anthropic_models(json, *model);
    return respond_json(exchange, json);
  }
  json.begin_object().key("object").string("list").key("data").begin_array();
  for (const std::string& name : model->names) write_model(json, *model, name);
  json.end_array().end_object();
  respond_json(exchange, json);
}

void handle_model(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  if (const auto error = not_ready(context)) return respond_error(exchange, *error);
  const auto model = context.model();
  const std::string name = name_in_path(exchange->request().path);
  if (!model->is_named(name)) {
    return respond_error(exchange,
                         {404, fmt::format("The model `{}` does not exist.", name), "model"});
  }
  JsonWriter json;
  if (speaks_anthropic(*exchange)) {
    write_anthropic_model(json, *model, name);
  } else {
    write_model(json, *model, name);
  }
  respond_json(exchange, json);
}

void handle_health(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  std::string status = "ok";
  if (context.draining) {
    status = "draining";
  } else if (context.model() == nullptr) {
    status = "loading";
  } else if (!context.model()->generator->healthy()) {
    status = "stalled";
  }
  HttpResponse response;
  if (status == "ok") {
    response.content_type.clear();  // 200 with nothing in it, as vLLM says it
    return exchange->respond(std::move(response));
  }
  const ServerContext::Loading loading = context.loading();
  JsonWriter json;
  json.begin_object().key("status").string(status);
  if (status == "loading") {
    json.key("progress").number(loading.fraction).key("message").string(loading.text);
  }
  json.end_object();
  response.status = 503;
  response.body = json.take();
  response.headers.push_back({"Retry-After", "1"});
  exchange->respond(std::move(response));
}

void handle_version(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  JsonWriter json;
  json.begin_object().key("version").string(context.options.version).end_object();
  respond_json(exchange, json);
}

void handle_metrics(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  const auto model = context.model();
  if (model != nullptr) {
    const EngineStats stats = model->generator->stats();
    response.body = context.metrics.page(&stats);
  } else {
    response.body = context.metrics.page(nullptr);
  }
  response.body += memory_metrics(context.memory);
  exchange->respond(std::move(response));
}

TokenizeRequest read_tokenize_request(FieldReader& reader, const ServerContext& context,
                                      const ServedModel& model, Dialect dialect) {
  TokenizeRequest request;
  read_model(reader, model, request.not_found);
  request.with_pieces = reader.boolean("return_token_strs").value_or(false);
  const auto add_special = reader.boolean("add_special_tokens");
  if (const auto given = reader.string("prompt", context.options.limits.body_bytes_max)) {
    request.prompt = *given;
    request.add_special_tokens = add_special.value_or(true);
    return request;
  }
  if (!reader.any("messages")) reader.fail("prompt", "either prompt or messages is needed");
  request.chat = read_chat_prompt(reader, context, model, dialect);
  request.add_special_tokens = request.chat.add_special_tokens;
  return request;
}

void handle_tokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  const ServedModel& model = *opened->model;
  FieldReader reader(opened->json.root());
  const TokenizeRequest request =
      read_tokenize_request(reader, context, model, exchange->request().dialect);
  if (request.not_found) return respond_error(exchange, *request.not_found);
  const std::string text = tokenize_text(reader, model, request);
  if (reader.error()) return respond_error(exchange, *reader.error());
  const std::vector<Token> tokens = model.tokenizer->encode(text, request.add_special_tokens);
  JsonWriter json;
  json.begin_object().key("count").integer(static_cast<std::int64_t>(tokens.size()));
  json.key("max_model_len").integer(model.context_length);
  json.key("tokens").begin_array();
  for (const Token token : tokens) json.integer(token);
  json.end_array().key("token_strs");
  if (request.with_pieces) {
    json.begin_array();
    for (const Token token : tokens) json.string(model.tokenizer->piece(token));
    json.end_array();
  } else {
    json.null();
  }
  json.end_object();
  respond_json(exchange, json);
}

DetokenizeRequest read_detokenize_request(FieldReader& reader, const ServerContext& context,
                                          const ServedModel& model) {
  DetokenizeRequest request;
  read_model(reader, model, request.not_found);
  request.tokens = reader.tokens("tokens", context.options.limits.body_bytes_max,
                                 model.tokenizer->vocabulary_size());
  if (!reader.any("tokens")) reader.fail("tokens", "tokens is missing");
  return request;
}

void handle_detokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  const ServedModel& model = *opened->model;
  FieldReader reader(opened->json.root());
  const DetokenizeRequest request = read_detokenize_request(reader, context, model);
  if (request.not_found) return respond_error(exchange, *request.not_found);
  if (reader.error()) return respond_error(exchange, *reader.error());
  JsonWriter json;
  json.begin_object().key("prompt").string(model.tokenizer->decode(request.tokens, false));
  json.end_object();
  respond_json(exchange, json);
}

}  // namespace kun
