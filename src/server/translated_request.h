// Requests of other dialects become chat requests: translated to their JSON and read by the same
// reader, so that a field means the same everywhere.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/json_writer.h"
#include "server/openai_api.h"
#include "server/openai_request.h"

namespace kun {

struct TranslatedChat {
  std::unique_ptr<JsonDocument> json;  // what the request was read from
  ChatRequest request;
};

// Answers the exchange itself when it gives nothing.
std::optional<TranslatedChat> read_translated_chat(ServerContext& context,
                                                   const std::shared_ptr<Exchange>& exchange,
                                                   const ServedModel& model,
                                                   const std::string& chat_json);

// Writes members of `from` under the same or another name, as they are, where they are there.
void copy_member(JsonWriter& json, JsonView from, std::string_view name, std::string_view as);
inline void copy_member(JsonWriter& json, JsonView from, std::string_view name) {
  copy_member(json, from, name, name);
}

}  // namespace kun
