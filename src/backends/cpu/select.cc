#include "backends/cpu/select.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kun {

std::vector<const CpuKernels*> supported_kernels() {
  std::vector<const CpuKernels*> tables{&reference_kernels()};
#if defined(__x86_64__)
  // Every processor with AVX2 has F16C, which clang 14 does not let us ask for.
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  if (avx2) tables.push_back(&avx2_kernels());
  if (avx2 && avx512) tables.push_back(&avx512_kernels());
#elif defined(__aarch64__)
  tables.push_back(&neon_kernels());
  // From <asm/hwcap.h> of newer kernels than some we build on.
  constexpr unsigned long kHwcap2Int8Matrices = 1UL << 13U;
  constexpr unsigned long kHwcap2Bf16 = 1UL << 14U;
  const bool dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  const bool i8mm = (getauxval(AT_HWCAP2) & kHwcap2Int8Matrices) != 0;
  const bool bf16 = (getauxval(AT_HWCAP2) & kHwcap2Bf16) != 0;
  if (dot) tables.push_back(&neon_dot_kernels());
  if (dot && i8mm) tables.push_back(&neon_i8mm_kernels());
  if (dot && i8mm && bf16) tables.push_back(&neon_bf16_kernels());
#endif
  return tables;
}

}  // namespace kun
