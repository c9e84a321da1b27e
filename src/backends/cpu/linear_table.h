// From a tile's token count, and a panel's format, to code for it: shared by the linear kernels of
// all instruction sets that have code of its own for each. In an unnamed namespace, so that every
// kernel file has its own copy (see kernels.h).
#pragma once

#include "backends/cpu/kernels.h"

namespace kun {
namespace {

template <template <int> class Panel>
void dispatch(const LinearTile& tile) {
  static_assert(kTileTokens == 6);
  switch (tile.tokens) {
    case 1: return Panel<1>::run(tile);
    case 2: return Panel<2>::run(tile);
    case 3: return Panel<3>::run(tile);
    case 4: return Panel<4>::run(tile);
    case 5: return Panel<5>::run(tile);
    default: return Panel<6>::run(tile);
  }
}

template <template <PanelFormat> class Grouped, PanelFormat... kFormats>
void add_formats(CpuKernels* table) {
  ((table->linear[static_cast<int>(kFormats)] = dispatch<Grouped<kFormats>::template Panel>), ...);
}

// `Grouped<format>` has a member template Panel<tokens>.
template <template <PanelFormat> class Grouped>
void add_grouped_formats(CpuKernels* table) {
  add_formats<Grouped, PanelFormat::k4F16, PanelFormat::k4F16Min, PanelFormat::k4SuperMin,
              PanelFormat::k4Super16, PanelFormat::k4Super16Min, PanelFormat::k6SuperMin,
              PanelFormat::k6Super16, PanelFormat::k8F16, PanelFormat::k8F16Min, PanelFormat::k8F32,
              PanelFormat::k8F32Group16, PanelFormat::k8Super>(table);
}

}  // namespace
}  // namespace kun
