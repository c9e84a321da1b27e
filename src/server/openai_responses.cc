// /v1/responses: translates a request into a chat, whose answer ResponsesWriter writes as items,
// and finds and forgets answers that were kept.
#include <fmt/format.h>

#include "server/chat_generation.h"
#include "server/json_writer.h"
#include "server/responses_api.h"
#include "server/responses_writer.h"
#include "server/translated_request.h"

namespace kun {
namespace {

std::string owner_of(const Exchange& exchange) {
  std::string owner(exchange.request().header("authorization"));
  owner += '\n';
  owner += exchange.request().header("x-api-key");
  return owner;
}

// "/v1/responses/ID" gives ID.
std::string id_in_path(const Exchange& exchange) {
  constexpr std::string_view kRoute = "/responses/";
  const std::string_view path = exchange.request().path;
  const std::size_t at = path.rfind(kRoute);
  return at == std::string_view::npos ? "" : percent_decode(path.substr(at + kRoute.size()));
}

ApiError unknown_response(std::string_view id, std::string param) {
  return {404, fmt::format("there is no response {:?}", std::string(id.substr(0, 64))),
          std::move(param)};
}

bool asks_for_events(const Exchange& exchange) {
  return ("&" + exchange.request().query + "&").find("&stream=true&") != std::string::npos;
}

}  // namespace

void handle_responses(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  auto opened = open_request(context, exchange);
  if (!opened) return;
  FieldReader reader(opened->json.root());
  std::string earlier;
  if (const auto id = reader.string("previous_response_id", 128)) {
    const auto stored = context.responses.find(*id, owner_of(*exchange));
    if (stored == nullptr) {
      return respond_error(exchange, unknown_response(*id, "previous_response_id"));
    }
    earlier = stored->messages.substr(1, stored->messages.size() - 2);
  }
  TranslatedResponses translated =
      translate_responses(reader, opened->json.root(), context.options.limits, earlier);
  if (reader.error()) return respond_error(exchange, *reader.error());
  context.note_unknown_fields(reader.unknown());
  auto chat = read_translated_chat(context, exchange, *opened->model, translated.chat);
  if (!chat) return;
  ResponsesWriter::Options options;
  options.echoed = std::move(translated.echoed);
  options.messages = std::move(translated.messages);
  options.owner = owner_of(*exchange);
  options.store = translated.store ? &context.responses : nullptr;
  ChatGeneration generation;
  generation.model = opened->model;
  generation.writer = std::make_unique<ResponsesWriter>(std::move(options));
  generation.fields = std::move(chat->request.fields);
  generation.chat = std::move(chat->request.chat);
  generation.messages_name = "input";
  generation.max_tokens_name = "max_output_tokens";
  start_chat(context, exchange, std::move(generation));
}

void handle_stored_response(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::string id = id_in_path(*exchange);
  const auto stored = context.responses.find(id, owner_of(*exchange));
  if (stored == nullptr) return respond_error(exchange, unknown_response(id, "response_id"));
  if (asks_for_events(*exchange)) {
    return respond_error(
        exchange, bad_field("stream", "a stored response is answered whole: its events are over"));
  }
  HttpResponse response;
  response.body = stored->response;
  exchange->respond(std::move(response));
}

void handle_delete_response(ServerContext& context, const std::shared_ptr<Exchange>& exchange) {
  const std::string id = id_in_path(*exchange);
  if (!context.responses.erase(id, owner_of(*exchange))) {
    return respond_error(exchange, unknown_response(id, "response_id"));
  }
  JsonWriter json;
  json.begin_object().key("id").string(id).key("object").string("response");
  json.key("deleted").boolean(true).end_object();
  HttpResponse response;
  response.body = json.take();
  exchange->respond(std::move(response));
}

}  // namespace kun
