// The parts of the AMX table, one file each.
#pragma once

#include "backends/cpu/kernels.h"

namespace kun {

void add_amx_linear(CpuKernels* table);
void add_amx_attention(CpuKernels* table);
void add_amx_peaks(CpuKernels* table);

}  // namespace kun
