// The routes beside generation: what is served, is it well, and text to tokens and back.
#pragma once

#include <memory>

#include "server/server_context.h"

namespace kun {

void handle_models(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_model(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_health(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_version(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_metrics(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_tokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange);
void handle_detokenize(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

}  // namespace kun
