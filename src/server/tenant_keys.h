// API keys and whom they stand for. A tenant may have several keys; its name is what schedulers and
// metrics see of it, never a key.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kun {

struct ApiKey {
  std::string key;
  std::string tenant;
  double weight = 1.0;  // share of the service when it is short, against other tenants' weights
};

// A file of keys: on each line a key, then the name of its tenant and the tenant's weight, either
// of which may be left out; `#` begins a comment. Lines without a name are tenants of their own.
Result<std::vector<ApiKey>> parse_api_keys(std::string_view text);

// For keys that come without a tenant: "key1", "key2" and so on, by their place.
std::vector<ApiKey> unnamed_api_keys(const std::vector<std::string>& keys);

}  // namespace kun
