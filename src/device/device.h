// Device opens the way to one kind of hardware. Apps link a backend in and hand the result around
// as Ops; nobody else names a backend.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "device/ops.h"
#include "tensor/dtype.h"
#include "tensor/weight_view.h"

namespace kun {

// The arithmetic of `--dtype`.
enum class ComputeType : std::uint8_t {
  kFloat32,   // weights dequantized to F32, activations never quantized, F32 cache: the exact path
  kBFloat16,  // the fast path: packed weights, activations quantized where that is faster, BF16
              // cache
};

struct DeviceOptions {
  int thread_count = 0;   // 0: from CPU affinity and cgroup quota
  std::string kernels{};  // name of a kernel table; empty: the best this machine can run
  ComputeType compute = ComputeType::kBFloat16;
  WeightTarget weights = WeightTarget::kAuto;  // what weights become in memory
  std::optional<DType> cache{};  // F32, BF16, or I8 with a scale per head; empty: as `compute` says
  std::string cpus{};            // processors to run on, "0-31,64"; empty: all this process may use
  std::string numa{};            // memory nodes: "" or "auto", "off" or those to run on, "0-1"
};

// What a backend's entry point returns.
class Device {
 public:
  virtual ~Device() = default;
  virtual Ops& ops() = 0;
  virtual DType cache_dtype() const = 0;        // what KV planes should hold
  virtual std::string description() const = 0;  // "cpu avx512, 2 threads": one line for the log
};

}  // namespace kun
