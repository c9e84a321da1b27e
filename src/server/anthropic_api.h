// Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <memory>

#include "server/request_json.h"
#include "server/server_context.h"

namespace kun {

void handle_messages(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_count_tokens(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

// The chat request that says the same. Problems are left in `reader`.
std::string translate_messages(FieldReader& reader, JsonView request, const ServerLimits& limits,
                               bool needs_max_tokens);

}  // namespace kun
