#include <immintrin.h>

#include "backends/cpu/avx2/parts.h"
namespace kun {
const CpuKernels& avx2_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = reference_kernels();
    kernels.name = "avx2";
    return kernels;
  }();
  return table;
}
}  // namespace kun
