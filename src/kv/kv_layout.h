// What one block of cache holds, told as data so that a new attention scheme needs no new class.
#pragma once

#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace kun {

// One array of the cache in each layer of its group.
struct KvPlane {
  std::string name;  // "key", "value", "latent", "rope_key", ...
  DType dtype = DType::kBF16;
  int width = 0;  // elements per token
};

// Planes whose blocks live and die together, and so share one block table.
struct KvGroup {
  int tokens_per_block = 32;
  std::vector<int> layers;
  std::vector<KvPlane> planes;

  // Bytes of one block over all layers and planes of the group.
  std::int64_t block_bytes() const {
    std::int64_t bytes = 0;
    for (const KvPlane& plane : planes) bytes += plane.width * size_bytes(plane.dtype);
    return bytes * tokens_per_block * static_cast<std::int64_t>(layers.size());
  }
};

struct KvLayout {
  std::vector<KvGroup> groups;  // one for dense models
};

}  // namespace kun
