// The parts of the AVX2 table, one file each.
#pragma once

#include "backends/cpu/kernels.h"

namespace kun {

void add_avx2_linear(CpuKernels* table);
void add_avx2_attention(CpuKernels* table);
void add_avx2_rows(CpuKernels* table);
void add_avx2_latent(CpuKernels* table);
void add_avx2_peaks(CpuKernels* table);

}  // namespace kun
