// A request on its way to the engine becomes its tenant's: who pays for it, and whose cached
// prompts it may find.
#pragma once

#include <string>

#include "engine/generator.h"
#include "server/http_message.h"

namespace kun {

// `isolated`: what one tenant has had computed no other finds in the cache, for a hit takes less
// time and so tells what others have sent. The length of the tenant's name comes first, so that no
// salt of one tenant's choice reads like another's.
inline void give_to_tenant(GenerateRequest& request, const HttpRequest& from, bool isolated) {
  request.tenant = from.tenant;
  request.tenant_weight = from.tenant_weight;
  if (!isolated || from.tenant.empty()) return;  // without keys there is one tenant
  request.cache_salt = std::to_string(from.tenant.size()) + ':' + from.tenant + request.cache_salt;
}

}  // namespace kun
