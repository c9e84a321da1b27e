// API keys. Only digests are kept, and every key is compared in full, so that the time an answer
// takes says nothing about how much of a guess was right.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace kun {

class ApiKeys {
 public:
  explicit ApiKeys(const std::vector<std::string>& keys);

  // No keys: everybody may in.
  bool empty() const { return digests_.empty(); }

  // Whether an Authorization header ("Bearer KEY") carries one of the keys.
  bool accepts(std::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);

  std::vector<Digest> digests_;
};

}  // namespace kun
