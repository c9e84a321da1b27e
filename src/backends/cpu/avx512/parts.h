// The parts of the AVX-512 table, one file each.
#pragma once

#include "backends/cpu/kernels.h"

namespace kun {

void add_avx512_linear(CpuKernels* table);
void add_avx512_attention(CpuKernels* table);
void add_avx512_rows(CpuKernels* table);
void add_avx512_latent(CpuKernels* table);
void add_avx512_peaks(CpuKernels* table);

}  // namespace kun
