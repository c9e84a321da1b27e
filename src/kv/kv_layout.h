// What one block of cache holds, told as data so that a new attention scheme needs no new class.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tensor/cache_entry.h"

namespace kun {

// One array of the cache in each layer of its group.
struct KvPlane {
  std::string name;  // "key", "value", "latent", "rope_key", ...
  DType dtype = DType::kBF16;
  int width = 0;       // elements per entry
  int head_width = 0;  // of which so many share a scale, when they are int8; 0: all
  // 1: an entry per token. More: one for so many tokens (compressed); it divides the group's
  // tokens_per_block, and equal to it makes the entry the state at the last token computed there.
  int positions_per_entry = 1;
  // Of such a state: whether it has taken in the tokens before as well, not the last one alone.
  bool cumulative = true;
};

// Planes whose blocks live and die together, and so share one block table. A layer may have planes
// in several groups; they count on in the order of groups.
struct KvGroup {
  int tokens_per_block = 32;
  std::vector<int> layers{};
  std::vector<KvPlane> planes{};
  // A token reads the entries of so many, itself the last of them; 0: of all before it.
  int window = 0;

  // The first block that the token at `position` reads, and so the first that any later one does.
  int first_block_read(int position) const {
    return window == 0 ? 0 : std::max(0, position + 1 - window) / tokens_per_block;
  }

  // Tokens of the longest sequence that a pool of `block_count` blocks can hold, if blocks before
  // the window are given back: without bound where a window always finds room.
  std::int64_t token_capacity(std::int64_t block_count) const {
    const std::int64_t held = block_count * tokens_per_block;
    const bool endless = window > 0 && held >= std::int64_t{window} + tokens_per_block - 1;
    return endless ? std::numeric_limits<std::int64_t>::max() : held;
  }

  // Bytes of one block over all layers and planes of the group.
  std::int64_t block_bytes() const {
    std::int64_t bytes = 0;
    for (const KvPlane& plane : planes) {
      const std::int64_t entries = tokens_per_block / plane.positions_per_entry;
      bytes += entries * cache_entry_bytes(plane.dtype, plane.width, plane.head_width);
    }
    return bytes * static_cast<std::int64_t>(layers.size());
  }
};

struct KvLayout {
  std::vector<KvGroup> groups;  // one for dense models

  // Bytes of one token's entries.
  double token_bytes() const {
    double bytes = 0.0;
    for (const KvGroup& group : groups) {
      bytes += static_cast<double>(group.block_bytes()) / group.tokens_per_block;
    }
    return bytes;
  }

  // Bytes of the blocks that hold one sequence.
  std::int64_t sequence_bytes(std::int64_t token_count) const {
    std::int64_t bytes = 0;
    for (const KvGroup& group : groups) {
      bytes +=
          (token_count + group.tokens_per_block - 1) / group.tokens_per_block * group.block_bytes();
    }
    return bytes;
  }

  // Whether a token's entries may be computed again with another token in its place, as after a
  // wrong draft: not where a plane keeps a state, which has taken the first one in.
  bool can_take_back() const {
    for (const KvGroup& group : groups) {
      for (const KvPlane& plane : group.planes) {
        const bool is_state = plane.positions_per_entry == group.tokens_per_block;
        if (is_state && plane.cumulative && group.tokens_per_block > 1) return false;
      }
    }
    return true;
  }
};

}  // namespace kun
