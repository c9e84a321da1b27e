// The digests a hub publishes, computed as bytes arrive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "hub/hub.h"

namespace kun {

class Digest {
 public:
  // `bytes`: the whole file's size, which is part of git's blob id.
  Digest(DigestKind kind, std::uint64_t bytes);
  ~Digest();

  void update(std::string_view piece);
  // Lower-case hexadecimal; empty for kNone. Call once.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kun
