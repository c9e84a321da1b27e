// How many processors this process may really use: what its affinity mask allows, less what a
// container's CPU quota takes away.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

namespace kun {

// The processors of this thread's affinity mask, ascending; never empty.
std::vector<int> allowed_cpus();

// Processors' worth of time the control groups of `self_cgroup` (/proc/self/cgroup) grant, the
// tightest of the hierarchy, v1 or v2 under `cgroup_root`. Empty: no limit found.
std::optional<double> cgroup_cpu_quota(
    const std::filesystem::path& self_cgroup = "/proc/self/cgroup",
    const std::filesystem::path& cgroup_root = "/sys/fs/cgroup");

// min(allowed processors, quota rounded down), at least 1.
int usable_cpu_count();

}  // namespace kun
