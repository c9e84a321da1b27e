// The linear kernels of ARMv8.2 with dot products, and their table.
#include "backends/cpu/neon/linear_kernels.h"

namespace kun {
namespace {

struct DotProduct {
  template <int kLane>
  static int32x4_t add(int32x4_t sum, int8x16_t weights, int8x16_t in) {
    return vdotq_laneq_s32(sum, weights, in, kLane);
  }
};

}  // namespace

void add_neon_dot_linear(CpuKernels* table) {
  add_grouped_formats<DotProduct>(table);
}

const CpuKernels& neon_dot_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = neon_kernels();
    kernels.name = "neon_dot";
    add_neon_dot_linear(&kernels);
    return kernels;
  }();
  return table;
}

}  // namespace kun
