// What the tile unit can do at best, for benchmarks to compare with.
#include "backends/cpu/amx/parts.h"
#include "backends/cpu/amx/tiles.h"

namespace kun {
namespace {

std::int64_t peak_bf16(std::int64_t rounds) {
  constexpr int kChains = 4;  // tiles of sums: more than latency times throughput
  constexpr std::int64_t kOperations = std::int64_t{kTileRows} * 16 * 32 * 2;
  TileShapes shapes;
  for (int i = 0; i < kChains + 2; ++i) shapes.set(i, kTileRows, kTileRowBytes);
  shapes.load();
  tile_zero<4>();
  tile_zero<5>();
  for (std::int64_t i = 0; i < rounds; ++i) {
    tile_dot_bf16<0, 4, 5>();
    tile_dot_bf16<1, 4, 5>();
    tile_dot_bf16<2, 4, 5>();
    tile_dot_bf16<3, 4, 5>();
  }
  TileShapes::release();
  return rounds * kChains * kOperations;
}

}  // namespace

void add_amx_peaks(CpuKernels* table) {
  table->peak_bf16 = peak_bf16;
}

}  // namespace kun
