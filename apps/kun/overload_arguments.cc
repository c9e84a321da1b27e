#include "overload_arguments.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <iterator>

#include "memory_plan.h"

namespace kun {
namespace {

constexpr std::size_t kKeyFileBytesMax = 4U << 20U;
constexpr double kMillisecondsMax = 86'400'000.0;

Result<std::vector<ApiKey>> read_api_keys(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return invalid_argument(fmt::format("--api-key-file: cannot read {}", path));
  std::string text(kKeyFileBytesMax + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kKeyFileBytesMax) {
    return invalid_argument(
        fmt::format("--api-key-file: {} is larger than {} bytes", path, kKeyFileBytesMax));
  }
  auto keys = parse_api_keys(text);
  if (!keys) {
    return invalid_argument(fmt::format("--api-key-file {}: {}", path, keys.error().message()));
  }
  // Nobody means to open a server to everybody by naming a file.
  if (keys->empty()) return invalid_argument(fmt::format("--api-key-file {} has no keys", path));
  return keys;
}

}  // namespace

void add_overload_flags(CLI::App& command, OverloadArguments& a) {
  command.add_option("--api-key-file", a.api_key_file,
                     "file of keys: KEY [TENANT [WEIGHT]] on each line; tenants share the server "
                     "by weight when it is busy");
  command.add_flag("--isolate-tenants,!--no-isolate-tenants", a.isolate_tenants,
                   "no tenant finds another's prompts in the cache (default); without it equal "
                   "prompts are computed once for all, and who hits the cache can tell what others "
                   "have sent");
  command
      .add_option("--memory-budget", a.memory_budget_bytes,
                  "bound of the whole process's memory, as 8GiB: weights, KV cache, and requests, "
                  "which are refused with 503 beyond it (0: none)")
      ->transform(CLI::AsSizeValue(false));
  const auto add_time = [&command](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)
        ->check(CLI::Range(0.0, kMillisecondsMax))
        ->capture_default_str();
  };
  add_time("--default-ttft-slo-ms", a.ttft_slo_ms,
           "ttft_slo_ms of requests that have none: refused or dropped when the first token cannot "
           "come in time (0: none)");
  add_time("--default-tpot-slo-ms", a.tpot_slo_ms,
           "tpot_slo_ms of requests that have none: refused when tokens cannot come so fast (0: "
           "none)");
  add_time("--default-timeout-ms", a.timeout_ms,
           "timeout_ms of requests that have none: their answers end there (0: none)");
}

Status apply_overload(const OverloadArguments& arguments, ServerOptions& options) {
  if (!arguments.api_key_file.empty()) {
    ASSIGN_OR_RETURN(options.tenant_keys, read_api_keys(arguments.api_key_file));
  }
  options.isolate_tenants = arguments.isolate_tenants;
  const auto time = [](double ms) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(ms));
  };
  options.limits.ttft_slo = time(arguments.ttft_slo_ms);
  options.limits.tpot_slo = time(arguments.tpot_slo_ms);
  options.limits.timeout = time(arguments.timeout_ms);
  options.memory = std::make_shared<MemoryLedger>();
  if (arguments.memory_budget_bytes > 0) {
    prepare_memory(arguments.memory_budget_bytes, *options.memory);
  }
  return {};
}

}  // namespace kun
