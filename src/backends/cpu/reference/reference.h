// The parts of the reference table, one file each.
#pragma once

#include "backends/cpu/kernels.h"

namespace kun {

void add_reference_linear(CpuKernels* table);
void add_reference_attention(CpuKernels* table);
void add_reference_rows(CpuKernels* table);
void add_reference_latent(CpuKernels* table);

}  // namespace kun
