// The two routes that generate. Each reads its request into native values, turns it into tokens
// and starts a GenerationJob.
#pragma once

#include <memory>

#include "server/server_context.h"

namespace kun {

void handle_chat_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_completions(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

}  // namespace kun
