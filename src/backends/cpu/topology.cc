#include "backends/cpu/topology.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>

namespace kun {
namespace {

namespace fs = std::filesystem;

constexpr int kNumberMax = 65'535;  // of processors and nodes
constexpr std::size_t kListBytesMax = 65'536;

std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kNumberMax) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool contains(std::span<const int> sorted, int number) {
  return std::ranges::binary_search(sorted, number);
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.size() <= kListBytesMax ? line : std::string();
}

// The processors of all nodes.
std::vector<int> joined(const std::vector<CpuNode>& nodes) {
  std::vector<int> cpus;
  for (const CpuNode& node : nodes) cpus.insert(cpus.end(), node.cpus.begin(), node.cpus.end());
  return cpus;
}

Result<std::vector<int>> named_cpus(const std::string& list, std::span<const int> allowed) {
  const auto cpus = parse_cpu_list(list);
  if (!cpus || cpus->empty()) {
    return invalid_argument(fmt::format("'{}' is no list of processors such as 0-3,8", list));
  }
  for (const int cpu : *cpus) {
    if (contains(allowed, cpu)) continue;
    return invalid_argument(
        fmt::format("processor {} is not among those this process may use", cpu));
  }
  return *cpus;
}

Result<std::vector<CpuNode>> named_nodes(const std::string& list, std::vector<CpuNode> nodes) {
  const auto ids = parse_cpu_list(list);
  if (!ids || ids->empty()) {
    return invalid_argument(
        fmt::format("'{}' is neither auto, off nor a list of memory nodes such as 0-1", list));
  }
  for (const int id : *ids) {
    const auto has_id = [id](const CpuNode& node) { return node.id == id; };
    if (std::ranges::any_of(nodes, has_id)) continue;
    return invalid_argument(fmt::format("memory node {} has no processor for this process", id));
  }
  std::erase_if(nodes, [&](const CpuNode& node) { return !contains(*ids, node.id); });
  return nodes;
}

// Equally many processors of each node, or nothing where that is not possible.
std::vector<int> spread(const std::vector<CpuNode>& nodes, int thread_count) {
  const auto node_count = static_cast<int>(nodes.size());
  if (thread_count % node_count != 0) return {};
  const auto share = static_cast<std::size_t>(thread_count / node_count);
  std::vector<int> cpus;
  for (const CpuNode& node : nodes) {
    if (node.cpus.size() < share) return {};
    cpus.insert(cpus.end(), node.cpus.begin(),
                node.cpus.begin() + static_cast<std::ptrdiff_t>(share));
  }
  return cpus;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(std::string_view text) {
  std::vector<int> numbers;
  while (!text.empty()) {
    const auto first = take_number(text);
    if (!first) return std::nullopt;
    int last = *first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      const auto end = take_number(text);
      if (!end || *end < *first) return std::nullopt;
      last = *end;
    }
    for (int number = *first; number <= last; ++number) numbers.push_back(number);
    if (numbers.size() > 4 * std::size_t{kNumberMax}) return std::nullopt;
    if (text.empty()) break;
    if (!text.starts_with(',') || text.size() == 1) return std::nullopt;
    text.remove_prefix(1);
  }
  std::ranges::sort(numbers);
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<CpuNode> read_topology(std::span<const int> allowed, const fs::path& folder) {
  std::vector<CpuNode> nodes;
  std::size_t placed = 0;
  const auto online = parse_cpu_list(first_line(folder / "online"));
  for (const int id : online.value_or(std::vector<int>())) {
    const auto cpus = parse_cpu_list(first_line(folder / fmt::format("node{}", id) / "cpulist"));
    CpuNode node{.id = id, .cpus = {}};
    std::ranges::copy_if(cpus.value_or(std::vector<int>()), std::back_inserter(node.cpus),
                         [&](int cpu) { return contains(allowed, cpu); });
    placed += node.cpus.size();
    if (!node.cpus.empty()) nodes.push_back(std::move(node));  // others are memory alone
  }
  if (placed == allowed.size()) return nodes;
  return {CpuNode{.id = 0, .cpus = {allowed.begin(), allowed.end()}}};
}

Result<Placement> place_threads(const PlacementOptions& options, std::span<const int> allowed,
                                const fs::path& folder) {
  std::vector<int> cpus(allowed.begin(), allowed.end());
  if (!options.cpus.empty()) {
    ASSIGN_OR_RETURN(cpus, named_cpus(options.cpus, allowed));
  }
  std::vector<CpuNode> nodes = read_topology(cpus, folder);
  if (options.numa == "off") {
    nodes = {CpuNode{.id = 0, .cpus = cpus}};
  } else if (!options.numa.empty() && options.numa != "auto") {
    ASSIGN_OR_RETURN(nodes, named_nodes(options.numa, std::move(nodes)));
  }
  cpus = joined(nodes);
  const auto cpu_count = static_cast<int>(cpus.size());
  Placement result;
  result.thread_count = options.thread_count;
  if (options.thread_count == 0) {
    result.thread_count =
        options.cpu_quota > 0 ? std::min(cpu_count, options.cpu_quota) : cpu_count;
  }
  const bool named = !options.cpus.empty();
  const bool pinned =
      result.thread_count == cpu_count || (named && result.thread_count < cpu_count);
  if (!pinned) return result;
  const std::vector<int> even = spread(nodes, result.thread_count);
  result.node_count = even.empty() ? 1 : static_cast<int>(nodes.size());
  result.cpus = even.empty() ? cpus : even;
  result.cpus.resize(static_cast<std::size_t>(result.thread_count));
  return result;
}

std::int64_t uncached_bytes() {
  constexpr std::int64_t kLeast = std::int64_t{384} << 20;
  const std::int64_t memory = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const std::int64_t wanted = std::int64_t{sysconf(_SC_LEVEL3_CACHE_SIZE)} * 3;
  return std::max(kLeast, std::min(wanted, memory / 12));
}

}  // namespace kun
