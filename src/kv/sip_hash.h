// SipHash-2-4 with 128 bits of output (Aumasson, Bernstein, "SipHash: a fast short-input PRF",
// 2012, and the 128-bit variant of its reference page): a keyed hash whose collisions cannot be
// made by somebody who does not know the key. Prefix labels need exactly that, and nothing more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kun {

struct Hash128 {
  std::uint64_t low = 0;   // the first 8 bytes of the output, little endian
  std::uint64_t high = 0;  // the last 8

  bool operator==(const Hash128&) const = default;
};

// `key[0]` is the first half of the 16-byte key, read as little endian.
Hash128 sip_hash_128(const std::uint64_t (&key)[2], std::span<const std::byte> input);

}  // namespace kun
