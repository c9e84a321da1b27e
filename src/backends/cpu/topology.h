// Which processors share a memory node, and which of them the threads of a device run on.
// Everything is computed from a folder like /sys/devices/system/node, so that tests can describe
// machines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kun {

// The processors of a list as the kernel writes it, "0-3,8,10-11", ascending and each once; nullopt
// for anything else, also for numbers that no machine has.
std::optional<std::vector<int>> parse_cpu_list(std::string_view text);

struct CpuNode {
  int id = 0;
  std::vector<int> cpus;  // ascending
};

// The nodes that have any of the `allowed` processors, with those. One node of them all where the
// machine does not tell, or does not tell about each.
std::vector<CpuNode> read_topology(
    std::span<const int> allowed, const std::filesystem::path& folder = "/sys/devices/system/node");

// What an operator may say about it.
struct PlacementOptions {
  int thread_count = 0;  // 0: one a processor, as far as `cpu_quota` goes
  std::string cpus{};    // a list of processors to run on; empty: all that are allowed
  std::string numa{};    // "" or "auto"; "off": as if there was one node; a list of nodes to run on
  int cpu_quota = 0;     // processors' worth of time that is granted; 0: no limit
};

// Where the threads run. Pinned when they fill the processors there are, or when the operator named
// them: fewer would crowd onto the same first ones as every other process that reasons like this.
struct Placement {
  int thread_count = 1;
  std::vector<int> cpus;  // of each thread, node by node; empty: not pinned
  int node_count = 1;     // nodes that hold equally many threads; else 1
};

// kInvalidArgument when the options name what is not there.
Result<Placement> place_threads(const PlacementOptions& options, std::span<const int> allowed,
                                const std::filesystem::path& folder = "/sys/devices/system/node");

// Bytes of which no cache of this machine keeps much from one round through them to the next.
std::int64_t uncached_bytes();

}  // namespace kun
