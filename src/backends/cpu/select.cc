#include "backends/cpu/select.h"

namespace kun {

std::vector<const CpuKernels*> supported_kernels() {
  return {&reference_kernels()};
}

}  // namespace kun
