#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace kun {

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (!key.empty()) digests_.push_back(digest(key));
  }
}

ApiKeys::Digest ApiKeys::digest(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

bool ApiKeys::accepts(std::string_view authorization) const {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() <= kScheme.size()) return false;
  for (std::size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    const char lowered = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    if (lowered != kScheme[i]) return false;
  }
  authorization.remove_prefix(kScheme.size());
  const Digest given = digest(authorization);
  bool accepted = false;
  for (const Digest& own : digests_) {
    accepted |= CRYPTO_memcmp(given.data(), own.data(), own.size()) == 0;
  }
  return accepted;
}

}  // namespace kun
