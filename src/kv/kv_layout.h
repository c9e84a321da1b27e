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
  int width = 0;  // elements per entry
  // 1: an entry per token. More: one for so many tokens (compressed); it divides the group's
  // tokens_per_block, and equal to it makes the entry the state at the last token computed there.
  int positions_per_entry = 1;
};

// Planes whose blocks live and die together, and so share one block table. A layer may have planes
// in several groups; they count on in the order of groups.
struct KvGroup {
  int tokens_per_block = 32;
  std::vector<int> layers;
  std::vector<KvPlane> planes;
  int window = 0;  // tokens that are ever read again; 0: all

  // Bytes of one block over all layers and planes of the group.
  std::int64_t block_bytes() const {
    std::int64_t bytes = 0;
    for (const KvPlane& plane : planes) {
      const std::int64_t entries = tokens_per_block / plane.positions_per_entry;
      bytes += entries * plane.width * size_bytes(plane.dtype);
    }
    return bytes * static_cast<std::int64_t>(layers.size());
  }
};

struct KvLayout {
  std::vector<KvGroup> groups;  // one for dense models

  // Whether a token's entries may be computed again with another token in its place, as after a
  // wrong draft: not where a plane keeps a state, which has taken the first one in.
  bool can_take_back() const {
    for (const KvGroup& group : groups) {
      for (const KvPlane& plane : group.planes) {
        const bool is_state = plane.positions_per_entry == group.tokens_per_block;
        if (is_state && group.tokens_per_block > 1) return false;
      }
    }
    return true;
  }
};

}  // namespace kun
