// A packed matrix as bytes that outlive the process: what a device would have to compute again
// otherwise. Only the device that made an image can read it, and only if its packing() is the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kun {

struct PackedImage {
  std::string layout;               // how to read `data`; the device's own business
  std::span<const std::byte> data;  // lives as long as the matrix or file it is a view of
  std::uint64_t checksum = 0;       // of `data`, as the device computes it
};

}  // namespace kun
