// OpenAI's Responses API: POST /v1/responses, and GET and DELETE of stored ones.
#pragma once

#include <memory>
#include <string>

#include "server/request_json.h"
#include "server/server_context.h"

namespace kun {

void handle_responses(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_stored_response(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_delete_response(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

// The chat request that says the same, and what the answer repeats of the request.
struct TranslatedResponses {
  std::string chat;      // JSON
  std::string messages;  // JSON array, part of `chat`: the conversation without instructions
  std::string echoed;    // JSON members
  bool store = true;
};

// `earlier`: the messages of the response that this one continues, JSON without brackets. Problems
// are left in `reader`.
TranslatedResponses translate_responses(FieldReader& reader, JsonView request,
                                        const ServerLimits& limits, const std::string& earlier);

}  // namespace kun
