// The CPU backend's front door.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/device.h"

namespace kun {

// Opens the processor as a device: picks the kernel table, starts the threads, logs the choice.
// invalid_argument when `options.kernels` names no table this machine can run.
Result<std::unique_ptr<Device>> open_cpu_device(const DeviceOptions& options);

// Names of the kernel tables this machine can run, the best last.
std::vector<std::string> cpu_kernel_names();

}  // namespace kun
