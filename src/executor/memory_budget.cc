// Limits hold for a group and all groups above it, so every ancestor is asked. In a container the
// path in /proc/self/cgroup may name folders only the host can see; the mount's root then stands
// for the container's own group, and folders that do not exist are passed over.
#include "executor/memory_budget.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace kun {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kFileBytesMax = 1 << 20;

// Of a group with a window a sequence holds its last few blocks, whatever its length, and the
// prefix cache wants some for the ends of prompts that it remembers: one for so many of the other
// groups.
constexpr int kWindowShare = 4;

// A whole small file; empty when it cannot be read.
std::string read_small(const fs::path& path) {
  std::ifstream file(path);
  std::string text;
  char buffer[4096];
  while (text.size() < kFileBytesMax && file.read(buffer, sizeof(buffer)).gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(file.gcount()));
  }
  return text;
}

// The number at the start of `text`, blanks before it skipped.
std::optional<std::int64_t> parse_number(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t");
  if (start == std::string_view::npos) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + start, end, value);
  if (error != std::errc() || value < 0) return std::nullopt;
  return value;
}

// The number after `key` at the start of a line: "MemAvailable:   123 kB", "inactive_file 123".
std::optional<std::int64_t> find_number(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with(key)) return parse_number(std::string_view(line).substr(key.size()));
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* reclaimable;  // a key of memory.stat
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                                  "total_inactive_file "};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", "inactive_file "};

void apply_limit(const fs::path& folder, const GroupFiles& files, MemoryBudget& budget) {
  // "max" (version 2) and 2^63 less a page (version 1) mean none: no number, or above the machine.
  const auto limit = parse_number(read_small(folder / files.limit));
  if (!limit.has_value() || *limit >= (std::int64_t{1} << 60)) return;
  const std::int64_t usage = parse_number(read_small(folder / files.usage)).value_or(0);
  const std::int64_t reclaimable = std::min(
      usage, find_number(read_small(folder / "memory.stat"), files.reclaimable).value_or(0));
  const std::int64_t available =
      std::max<std::int64_t>(0, *limit - std::min(usage, *limit) + reclaimable);
  budget.total_bytes = std::min(budget.total_bytes, *limit);
  if (std::min(available, *limit) >= budget.available_bytes) return;
  budget.available_bytes = std::min(available, *limit);
  budget.limited_by = folder.string();
}

// The group's folder and all above it, up to the mount's root.
void apply_limits(const fs::path& mount, std::string_view group, const GroupFiles& files,
                  MemoryBudget& budget) {
  constexpr int kDepthMax = 64;
  fs::path relative = fs::path(group).lexically_normal().relative_path();
  for (int depth = 0; depth < kDepthMax; ++depth) {
    apply_limit(relative.empty() ? mount : mount / relative, files, budget);
    if (relative.empty()) return;
    relative = relative.parent_path();
  }
}

}  // namespace

Result<MemoryBudget> read_memory_budget(const fs::path& root) {
  const std::string meminfo = read_small(root / "proc/meminfo");
  const auto total_kib = find_number(meminfo, "MemTotal:");
  auto available_kib = find_number(meminfo, "MemAvailable:");
  if (!available_kib.has_value()) available_kib = find_number(meminfo, "MemFree:");
  constexpr std::int64_t kKibMax = std::numeric_limits<std::int64_t>::max() / 1024;
  if (!total_kib.has_value() || !available_kib.has_value() || *total_kib > kKibMax ||
      *available_kib > kKibMax) {
    return internal_error(
        fmt::format("{} does not tell how much memory is free; set the cache "
                    "size explicitly",
                    (root / "proc/meminfo").string()));
  }
  MemoryBudget budget{*total_kib * 1024, *available_kib * 1024, "the machine"};

  std::istringstream lines(read_small(root / "proc/self/cgroup"));
  std::string line;
  while (std::getline(lines, line)) {  // "0::/group" or "7:cpu,memory:/group"
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      apply_limits(root / "sys/fs/cgroup", group, kVersion2, budget);
    } else if (controllers.find(",memory,") != std::string::npos) {
      apply_limits(root / "sys/fs/cgroup/memory", group, kVersion1, budget);
    }
  }
  return budget;
}

std::vector<int> block_counts_of(const KvLayout& layout, std::int64_t token_count,
                                 int step_tokens) {
  std::vector<int> counts;
  for (const KvGroup& group : layout.groups) {
    const std::int64_t length = group.tokens_per_block;
    std::int64_t count = token_count / length;
    if (group.window > 0 && step_tokens > 0) {
      const std::int64_t alone = (std::int64_t{group.window} + step_tokens) / length + 2;
      count = std::min(count, std::max(alone, count / kWindowShare));
    }
    counts.push_back(static_cast<int>(count));
  }
  return counts;
}

std::vector<int> block_count_for(const KvLayout& layout, std::int64_t bytes, int step_tokens) {
  const std::vector<int> none(layout.groups.size(), 0);
  for (const KvGroup& group : layout.groups) {
    if (group.tokens_per_block <= 0 || group.block_bytes() <= 0) return none;
  }
  if (layout.groups.empty()) return none;
  const auto fits = [&](std::int64_t tokens) {
    const std::vector<int> counts = block_counts_of(layout, tokens, step_tokens);
    std::int64_t left = bytes;
    for (std::size_t g = 0; g < counts.size(); ++g) {
      const std::int64_t block_bytes = layout.groups[g].block_bytes();
      if (counts[g] > left / block_bytes) return false;
      left -= counts[g] * block_bytes;
    }
    return true;
  };
  // Slots are 32-bit numbers.
  std::int64_t low = 0;
  std::int64_t high = std::numeric_limits<std::int32_t>::max();
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  std::vector<int> counts = block_counts_of(layout, low, step_tokens);
  return std::ranges::find(counts, 0) == counts.end() ? counts : none;
}

}  // namespace kun
