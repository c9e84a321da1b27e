// What every plan must keep to, whatever the load: looked at from outside, as a worker sees it.
#pragma once

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>

#include "kv/kv_layout.h"
#include "plan/batch_plan.h"

namespace kun {

using BlockPlace = std::pair<std::size_t, BlockId>;  // group, block

inline int total_tokens(const BatchPlan& plan) {
  int total = 0;
  for (const PlanSlice& slice : plan.slices) total += static_cast<int>(slice.tokens.size());
  return total;
}

// The broken promise in a sentence, or nothing: copies have distinct targets and no chains, no
// block that is written belongs to another slice, no sequence appears twice, and of a group with a
// window nobody holds a block before it, while none behind is missing.
inline std::string broken_promise(const BatchPlan& plan, const KvLayout& layout) {
  std::set<BlockPlace> sources;
  std::set<BlockPlace> targets;
  for (const BlockCopy& copy : plan.block_copies) {
    const auto g = static_cast<std::size_t>(copy.group);
    sources.insert({g, copy.from});
    if (!targets.insert({g, copy.to}).second)
      return fmt::format("block {} copied to twice", copy.to);
  }
  for (const BlockPlace& source : sources) {
    if (targets.contains(source)) return fmt::format("block {} is copied both ways", source.second);
  }
  std::map<BlockPlace, int> users;
  std::set<std::pair<SequenceId, std::uint32_t>> named;
  for (const PlanSlice& slice : plan.slices) {
    if (slice.tokens.empty()) return "a slice is empty";
    if (!named.insert({slice.sequence, slice.choice}).second) {
      return fmt::format("sequence {} choice {} is named twice", slice.sequence, slice.choice);
    }
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      std::set<BlockId> own;
      const std::vector<BlockId>& ids = slice.blocks.at(g);
      for (std::size_t b = 0; b < ids.size(); ++b) {
        const BlockId id = ids[b];
        const bool passed =
            static_cast<int>(b) < layout.groups[g].first_block_read(slice.first_position);
        if (passed != (id == kNoBlock)) {
          return fmt::format("sequence {} {} block {} of its table", slice.sequence,
                             passed ? "still holds" : "lacks", b);
        }
        if (passed) continue;
        if (!own.insert(id).second) return fmt::format("block {} twice in one table", id);
        ++users[{g, id}];
      }
    }
  }
  for (const PlanSlice& slice : plan.slices) {
    const int last = slice.first_position + static_cast<int>(slice.tokens.size()) - 1;
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      const int length = layout.groups[g].tokens_per_block;
      const std::vector<BlockId>& ids = slice.blocks[g];
      if (std::ssize(ids) != last / length + 1) return "a table does not end with its tokens";
      for (int b = slice.first_position / length; b <= last / length; ++b) {
        const BlockId id = ids[static_cast<std::size_t>(b)];
        if (users[{g, id}] > 1) return fmt::format("block {} is written and shared", id);
      }
    }
  }
  return {};
}

}  // namespace kun
