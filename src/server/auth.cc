#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace kun {
namespace {

// The key of "Bearer KEY"; empty when it is something else.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return {};
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    const char lowered = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lowered != kScheme[i]) return {};
  }
  return authorization.substr(kScheme.size());
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<ApiKey>& keys) {
  for (const ApiKey& key : keys) {
    if (!key.key.empty()) entries_.push_back({digest(key.key), {key.tenant, key.weight}});
  }
}

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

const ApiKeys::Owner* ApiKeys::find(std::string_view key) const {
  if (key.empty()) return nullptr;
  const Digest given = digest(key);
  const Owner* found = nullptr;
  for (const Entry& entry : entries_) {
    const bool same = CRYPTO_memcmp(given.data(), entry.digest.data(), given.size()) == 0;
    found = same ? &entry.owner : found;
  }
  return found;
}

const ApiKeys::Owner* ApiKeys::owner(const HttpRequest& request) const {
  if (entries_.empty()) return nullptr;
  const Owner* by_bearer = find(bearer_key(request.header("authorization")));
  return by_bearer != nullptr ? by_bearer : find(request.header("x-api-key"));
}

}  // namespace kun
