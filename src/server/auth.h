// API keys. Only digests are kept, and every key is compared in full, so that the time an answer
// takes says nothing about how much of a guess was right.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "server/http_message.h"
#include "server/tenant_keys.h"

namespace kun {

class ApiKeys {
 public:
  // Whom a key stands for.
  struct Owner {
    std::string tenant;
    double weight = 1.0;
  };

  explicit ApiKeys(const std::vector<ApiKey>& keys);

  // No keys: everybody may in.
  bool empty() const { return entries_.empty(); }

  // Whose key an Authorization header ("Bearer KEY") carries, or an x-api-key header; null: none.
  const Owner* owner(const HttpRequest& request) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    Owner owner;
  };
  static Digest digest(std::string_view key);
  const Owner* find(std::string_view key) const;

  std::vector<Entry> entries_;
};

}  // namespace kun
