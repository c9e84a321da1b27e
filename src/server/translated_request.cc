#include "server/translated_request.h"

#include "server/json_writer.h"

namespace kun {

std::optional<TranslatedChat> read_translated_chat(ServerContext& context,
                                                   const std::shared_ptr<Exchange>& exchange,
                                                   const ServedModel& model,
                                                   const std::string& chat_json) {
  TranslatedChat translated;
  Result<JsonDocument> json = JsonDocument::parse(chat_json, context.json_limits());
  if (!json) {
    respond_error(exchange, error_from(json.error()));
    return std::nullopt;
  }
  translated.json = std::make_unique<JsonDocument>(*std::move(json));
  FieldReader reader(translated.json->root());
  std::optional<ApiError> not_found;
  translated.request =
      read_chat_request(reader, context, model, exchange->request().dialect, not_found);
  if (not_found) {
    respond_error(exchange, *not_found);
    return std::nullopt;
  }
  if (reader.error()) {
    respond_error(exchange, *reader.error());
    return std::nullopt;
  }
  return translated;
}

void copy_member(JsonWriter& json, JsonView from, std::string_view name, std::string_view as) {
  const auto value = from.find(name);
  if (!value || value->is(JsonView::Kind::kNull)) return;
  std::string text;
  value->print(text);
  json.key(as).raw(text);
}

}  // namespace kun
