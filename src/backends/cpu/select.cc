#include "backends/cpu/select.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kun {
namespace {

#if defined(__x86_64__)
// Whether the processor has tiles of BF16, and the system saves them for this process: Linux has to
// be asked (https://docs.kernel.org/arch/x86/xstate.html).
bool has_amx() {
  constexpr unsigned kBf16 = 1U << 22U;  // CPUID 7, EDX
  constexpr unsigned kTile = 1U << 24U;
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kBf16) == 0 || (edx & kTile) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

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
  if (avx2 && avx512 && has_amx()) tables.push_back(&amx_kernels());
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
