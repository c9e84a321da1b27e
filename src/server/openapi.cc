#include "server/openapi.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "server/json_writer.h"
#include "server/openai_request.h"
#include "server/openapi_schemas.h"
#include "server/routes.h"

namespace kun {
namespace {

// "/v1/models/*" is "/v1/models/{id}" there.
std::string shown_path(std::string_view path) {
  if (!path.ends_with('*')) return std::string(path);
  return std::string(path.substr(0, path.size() - 1)) + "{id}";
}

void write_bound(JsonWriter& json, std::string_view name, const FieldNote& field,
                 const std::optional<double>& bound) {
  // 2^53: beyond it doubles are no exact integers, and nobody needs such bounds.
  if (!bound || std::abs(*bound) > 9007199254740992.0) return;
  json.key(name);
  if (field.type == "integer") {
    json.integer(static_cast<std::int64_t>(*bound));
  } else {
    json.number(*bound);
  }
}

void write_field(JsonWriter& json, const FieldNote& field, const ServedModel& model) {
  json.key(field.name);
  const std::string_view shape = field_shape(field.name);
  const bool more = field.type != "string" && field.use == FieldNote::Use::kRead;
  if (!shape.empty() && more) {
    json.raw("{" + std::string(shape) + "}");
    return;
  }
  json.begin_object();
  if (field.name == "model") {
    json.key("enum").begin_array();
    for (const std::string& name : model.names) json.string(name);
    json.null().end_array();
  }
  if (!field.type.empty()) {
    // null stands for absence everywhere.
    json.key("type").begin_array().string(field.type).string("null").end_array();
  }
  if (field.type == "array") json.key("items").begin_object().end_object();
  write_bound(json, "minimum", field, field.min);
  write_bound(json, "maximum", field, field.max);
  if (field.use == FieldNote::Use::kRefused) {
    json.key("description").string("Not supported: a value that asks for it is answered with 400.");
    json.key("deprecated").boolean(true);
  } else if (field.use == FieldNote::Use::kIgnored) {
    json.key("description").string("Accepted, and without effect here.");
  }
  json.end_object();
}

void write_body(JsonWriter& json, const Route& route, const ServerContext& context,
                const ServedModel& model) {
  const Result<JsonDocument> empty = JsonDocument::parse("{}", {});
  std::vector<FieldNote> notes;
  FieldReader reader(empty->root(), "", &notes);
  route.fields(reader, context, model);
  json.key("requestBody").begin_object().key("required").boolean(true);
  json.key("content").begin_object().key("application/json").begin_object();
  json.key("schema").begin_object().key("type").string("object");
  json.key("properties").begin_object();
  for (const FieldNote& note : notes) write_field(json, note, model);
  json.end_object();
  // What an empty request lacks first is what every request needs.
  if (reader.error() && reader.error()->param && reader.error()->message.ends_with("is missing")) {
    json.key("required").begin_array().string(*reader.error()->param).end_array();
  }
  json.end_object().end_object().end_object().end_object();
}

void write_content(JsonWriter& json, std::string_view type, std::string_view schema) {
  json.key(type).begin_object().key("schema").begin_object();
  if (schema.empty()) {
    json.key("type").string(type == "application/json" ? "object" : "string");
  } else {
    json.key("$ref").string("#/components/schemas/" + std::string(schema));
  }
  json.end_object().end_object();
}

// What a stream is made of: the schema is that of an event, as readers of OpenAPI 3.1 take it.
void write_event_stream(JsonWriter& json) {
  json.key("text/event-stream").begin_object().key("schema").begin_object();
  json.key("type").string("object").key("properties").begin_object();
  for (const char* name : {"event", "data"}) {
    json.key(name).begin_object().key("type").string("string").end_object();
  }
  json.end_object();
  json.key("required").begin_array().string("data").end_array();
  json.end_object().end_object();
}

// Answers of these come as events when the request says "stream": true.
bool may_stream(const Route& route) {
  const std::string_view path = route.path;
  return route.method == "POST" &&
         (path.ends_with("/completions") || path == "/v1/responses" || path == "/v1/messages");
}

// Answers of these have deadlines.
bool computes(const Route& route) {
  const std::string_view path = route.path;
  return may_stream(route) || path.ends_with("/embeddings") || path.ends_with("/score");
}

void write_responses(JsonWriter& json, const Route& route) {
  const std::string path = shown_path(route.path);
  json.key("responses").begin_object();
  json.key("200").begin_object().key("description").string(route.summary);
  if (route.kind != RouteKind::kHealth || path == "/version") {
    json.key("content").begin_object();
    write_content(json, route.kind == RouteKind::kMetrics ? "text/plain" : "application/json",
                  answer_schema(route.method, path));
    if (may_stream(route)) write_event_stream(json);
    json.end_object();
  }
  json.end_object();
  const auto error = [&](std::string_view status, std::string_view text) {
    json.key(status).begin_object().key("description").string(text);
    json.key("content").begin_object();
    // What says "not ready" on the pages for probes has a form of its own.
    const bool probe = route.kind == RouteKind::kHealth && status == "503";
    write_content(json, "application/json", probe ? "" : error_schema(path));
    json.end_object().end_object();
  };
  if (route.kind == RouteKind::kApi) {
    error("401", "no key, or a wrong one, where the server wants one");
    error("4XX", "what is wrong with the request, in the dialect's shape");
    error("503", "the model is being loaded, or the server is overloaded or going down");
    if (computes(route)) error("504", "timeout_ms was over before the first token");
  } else {
    error("4XX", "not to be had without a key, or not at all");
    error("503", "not ready");
  }
  json.end_object();
}

void write_operation(JsonWriter& json, const Route& route, const ServerContext& context,
                     const ServedModel& model) {
  std::string method(route.method);
  std::ranges::transform(method, method.begin(),
                         [](char c) { return static_cast<char>(c - 'A' + 'a'); });
  json.key(method).begin_object().key("summary").string(route.summary);
  if (route.path.ends_with('*')) {
    json.key("parameters").begin_array().begin_object();
    json.key("name").string("id").key("in").string("path").key("required").boolean(true);
    json.key("schema").begin_object().key("type").string("string").end_object();
    json.end_object().end_array();
  }
  if (route.fields != nullptr) write_body(json, route, context, model);
  write_responses(json, route);
  json.end_object();
}

}  // namespace

std::string openapi_document(const ServerContext& context, const ServedModel& model) {
  std::map<std::string, std::vector<const Route*>> by_path;
  for (const Route& route : all_routes()) by_path[shown_path(route.path)].push_back(&route);
  JsonWriter json;
  json.begin_object().key("openapi").string("3.1.0");
  json.key("info").begin_object().key("title").string("Kun");
  json.key("version").string(context.options.version).end_object();
  json.key("paths").begin_object();
  for (const auto& [path, routes] : by_path) {
    json.key(path).begin_object();
    for (const Route* route : routes) write_operation(json, *route, context, model);
    json.end_object();
  }
  json.end_object().key("components").begin_object();
  json.key("schemas").raw(answer_schemas());
  json.key("securitySchemes").begin_object();
  json.key("key").begin_object().key("type").string("http").key("scheme").string("bearer");
  json.end_object().end_object().end_object();
  json.key("security").begin_array();
  if (!context.options.api_keys.empty() || !context.options.tenant_keys.empty()) {
    json.begin_object().key("key").begin_array().end_array().end_object();
  }
  json.end_array().end_object();
  return json.take();
}

void handle_openapi(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  // Bounds such as the context's length are the model's.
  if (const auto error = not_ready(context)) return respond_error(exchange, *error);
  HttpResponse response;
  response.body = openapi_document(context, *context.model());
  exchange->respond(std::move(response));
}

}  // namespace kun
