// Checksums against damage, not against attackers: 64 bits, several bytes a cycle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kun {

// XXH64 of the bytes (the algorithm of the xxHash specification, doc/xxhash_spec.md).
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed = 0);

}  // namespace kun
