#include "backends/cpu/cpu_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backends/cpu/cpu_count.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/select.h"
#include "backends/cpu/topology.h"
#include "base/log.h"

namespace kun {
namespace {

constexpr int kThreadCountMax = 1024;

class CpuDevice final : public Device {
 public:
  CpuDevice(const CpuKernels& kernels, const DeviceOptions& options, const Placement& placement)
      : kernels_(kernels),
        compute_(options.compute),
        cache_dtype_(options.cache.value_or(
            options.compute == ComputeType::kFloat32 ? DType::kF32 : DType::kBF16)),
        pool_(placement.thread_count, placement.cpus, placement.node_count),
        ops_(kernels, options.compute, pool_, options.weights) {}

  Ops& ops() override { return ops_; }
  DType cache_dtype() const override { return cache_dtype_; }
  std::string description() const override {
    std::string threads =
        fmt::format("{} thread{}", pool_.thread_count(), pool_.thread_count() == 1 ? "" : "s");
    if (pool_.node_count() > 1) threads += fmt::format(" on {} memory nodes", pool_.node_count());
    const DType arithmetic = compute_ == ComputeType::kFloat32 ? DType::kF32 : DType::kBF16;
    std::string cache;
    if (cache_dtype_ != arithmetic) cache = fmt::format(", {} cache", name(cache_dtype_));
    return fmt::format("cpu {}, {}, {}{}", kernels_.name, threads, name(arithmetic), cache);
  }

 private:
  const CpuKernels& kernels_;
  ComputeType compute_;
  DType cache_dtype_;
  ThreadPool pool_;
  CpuOps ops_;
};

}  // namespace

std::vector<std::string> cpu_kernel_names() {
  std::vector<std::string> names;
  for (const CpuKernels* table : supported_kernels()) names.emplace_back(table->name);
  return names;
}

Result<std::unique_ptr<Device>> open_cpu_device(const DeviceOptions& options) {
  if (options.thread_count < 0 || options.thread_count > kThreadCountMax) {
    return invalid_argument(fmt::format("the thread count must be 0 to {}, not {}", kThreadCountMax,
                                        options.thread_count));
  }
  const DType cache = options.cache.value_or(DType::kBF16);
  if (cache != DType::kF32 && cache != DType::kBF16 && cache != DType::kI8) {
    return invalid_argument(
        fmt::format("a cache can hold float32, bfloat16 or int8, and not {}", name(cache)));
  }
  const bool converts =
      options.weights != WeightTarget::kAuto && options.weights != WeightTarget::kAsStored;
  if (options.compute == ComputeType::kFloat32 && converts) {
    return invalid_argument(
        "float32 arithmetic keeps every weight as float32; leave out --weight-format, or give "
        "--dtype bfloat16");
  }
  const std::vector<const CpuKernels*> tables = supported_kernels();
  const CpuKernels* chosen = options.kernels.empty() ? tables.back() : nullptr;
  for (const CpuKernels* table : tables) {
    if (options.kernels == table->name) chosen = table;
  }
  if (chosen == nullptr) {
    return invalid_argument(fmt::format("no kernels named '{}' on this machine, which has {}",
                                        options.kernels, fmt::join(cpu_kernel_names(), ", ")));
  }
  const std::vector<int> allowed = allowed_cpus();
  const PlacementOptions where{.thread_count = options.thread_count,
                               .cpus = options.cpus,
                               .numa = options.numa,
                               .cpu_quota = usable_cpu_count()};
  ASSIGN_OR_RETURN(const Placement placement, place_threads(where, allowed));
  auto device = std::make_unique<CpuDevice>(*chosen, options, placement);
  LOG(kInfo, fmt::format("device: {}", device->description()));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace kun
