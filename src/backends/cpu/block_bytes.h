// Reading the unaligned little-endian fields of stored blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kun {

inline std::uint16_t u16_at(const std::byte* data) {
  std::uint16_t value = 0;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

inline std::uint32_t u32_at(const std::byte* data) {
  std::uint32_t value = 0;
  std::memcpy(&value, data, sizeof(value));
  return value;
}

inline int low_nibble(std::byte byte) {
  return static_cast<int>(byte) & 15;
}

inline int high_nibble(std::byte byte) {
  return static_cast<int>(byte) >> 4;
}

}  // namespace kun
