// The parts of the NEON tables, one file each.
#pragma once

#include "backends/cpu/kernels.h"

namespace kun {

void add_neon_linear(CpuKernels* table);  // ARMv8.0
void add_neon_attention(CpuKernels* table);
void add_neon_int8_attention(CpuKernels* table);
void add_neon_dot_int8_attention(CpuKernels* table);
void add_neon_bf16_attention(CpuKernels* table);  // of a BF16 cache
void add_neon_rows(CpuKernels* table);

}  // namespace kun
