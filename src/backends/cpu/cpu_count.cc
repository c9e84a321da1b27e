#include "backends/cpu/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace kun {
namespace {

namespace fs = std::filesystem;

constexpr int kDepthMax = 64;  // levels of control groups looked at

std::optional<double> ratio(double quota, double period) {
  if (quota <= 0.0 || period <= 0.0) return std::nullopt;
  return quota / period;
}

// "cpu.max" of v2: "max 100000" or "200000 100000", in microseconds.
std::optional<double> read_v2(const fs::path& folder) {
  std::ifstream file(folder / "cpu.max");
  double quota = 0.0;
  double period = 0.0;
  if (!(file >> quota >> period)) return std::nullopt;
  return ratio(quota, period);
}

std::optional<double> read_v1(const fs::path& folder) {
  std::ifstream quota_file(folder / "cpu.cfs_quota_us");
  std::ifstream period_file(folder / "cpu.cfs_period_us");
  double quota = 0.0;
  double period = 0.0;
  if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  return ratio(quota, period);
}

// The tightest limit from `group` up to the root. Inside a container the path may name a group that
// is not visible; its missing folders are skipped.
template <class Read>
std::optional<double> tightest(const fs::path& root, const std::string& group, Read read) {
  std::optional<double> result;
  fs::path path = fs::path(group).relative_path();
  for (int depth = 0; depth < kDepthMax; ++depth) {
    if (const auto limit = read(root / path)) result = std::min(result.value_or(*limit), *limit);
    if (path.empty()) break;
    path = path.parent_path();
  }
  return result;
}

bool names_cpu(const std::string& controllers) {
  std::istringstream list(controllers);
  for (std::string name; std::getline(list, name, ',');) {
    if (name == "cpu") return true;
  }
  return false;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

std::optional<double> cgroup_cpu_quota(const fs::path& self_cgroup, const fs::path& cgroup_root) {
  std::optional<double> result;
  std::ifstream file(self_cgroup);
  for (std::string line; std::getline(file, line);) {  // "hierarchy:controllers:path"
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    std::optional<double> limit;
    if (controllers.empty()) {
      limit = tightest(cgroup_root, group, read_v2);
    } else if (names_cpu(controllers)) {
      limit = tightest(cgroup_root / "cpu", group, read_v1);
      if (!limit) limit = tightest(cgroup_root / controllers, group, read_v1);
    }
    if (limit) result = std::min(result.value_or(*limit), *limit);
  }
  return result;
}

int usable_cpu_count() {
  const int allowed = static_cast<int>(allowed_cpus().size());
  const std::optional<double> quota = cgroup_cpu_quota();
  if (!quota || *quota >= static_cast<double>(allowed)) return allowed;
  return std::max(1, static_cast<int>(*quota));
}

}  // namespace kun
