// Which kernel tables this machine can run.
#pragma once

#include <vector>

#include "backends/cpu/kernels.h"

namespace kun {

// Slowest first. Asked once, when the device opens.
std::vector<const CpuKernels*> supported_kernels();

}  // namespace kun
