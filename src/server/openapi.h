// /openapi.json: what this server takes, made of the table of routes and of what their readers ask
// for, so that it cannot say anything else than the code does.
#pragma once

#include <memory>
#include <string>

#include "server/server_context.h"

namespace kun {

void handle_openapi(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

std::string openapi_document(const ServerContext& context, const ServedModel& model);

}  // namespace kun
