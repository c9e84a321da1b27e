// How much memory this process may still take: the machine's free memory, or less where a control
// group (a container) sets a limit. Read from /proc and /sys/fs/cgroup, versions 1 and 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "kv/kv_layout.h"

namespace kun {

struct MemoryBudget {
  std::int64_t total_bytes = 0;      // of the machine, or the limit
  std::int64_t available_bytes = 0;  // page cache that can be dropped counts as available
  std::string limited_by;            // "the machine", or the control group's folder
};

// `root` is "/" but in tests.
Result<MemoryBudget> read_memory_budget(const std::filesystem::path& root = "/");

// Blocks per KV group for `token_count` tokens of cache. Where blocks before a window are given
// back
// (`step_tokens`: at most so many are computed in a step; 0: they are not given back), the group
// gets a share of what the others have, but enough for one sequence with a whole step to itself.
std::vector<int> block_counts_of(const KvLayout& layout, std::int64_t token_count,
                                 int step_tokens = 0);

// The most blocks of that kind which fit `bytes` together; 0 where the budget is too small for one
// block each.
std::vector<int> block_count_for(const KvLayout& layout, std::int64_t bytes, int step_tokens = 0);

}  // namespace kun
