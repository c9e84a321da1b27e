// The linear kernel of BF16 panels on AMX, for any number of tokens: AVX-512 would add what one
// tile instruction adds in another order, so no token may meet both.
#include <immintrin.h>

#include "backends/cpu/amx/parts.h"
#include "backends/cpu/amx/tiles.h"
#include "backends/cpu/avx512/linear_parts.h"

namespace kun {
namespace {

constexpr int kLow = 0;  // tiles: sums [token][16 rows], of the panel's two halves
constexpr int kHigh = 1;
constexpr int kInput = 2;       // [token][16 pairs]
constexpr int kLowWeights = 3;  // [pair][16 rows][2]
constexpr int kHighWeights = 4;
constexpr int kLastInput = 5;  // the same of a last line with fewer pairs
constexpr int kLastLow = 6;
constexpr int kLastHigh = 7;

constexpr int kLinePairs = kBlockColumns / 2;
constexpr int kPairBytes = kPanelRows * 4;

template <int kIn, int kLowPairs, int kHighPairs>
[[gnu::always_inline]] inline void add_line(const std::byte* line, const std::byte* weights) {
  tile_load<kIn>(line, kLineBytes);
  tile_load<kLowPairs>(weights, kPairBytes);
  tile_load<kHighPairs>(weights + kTileRowBytes, kPairBytes);
  tile_dot_bf16<kLow, kIn, kLowPairs>();
  tile_dot_bf16<kHigh, kIn, kHighPairs>();
}

void multiply_bf16(const LinearTile& tile) {
  const std::int64_t pairs = (tile.cols + 1) / 2;
  const std::int64_t lines = pairs / kLinePairs;
  const auto left = static_cast<int>(pairs % kLinePairs);
  TileShapes shapes;
  shapes.set(kLow, tile.tokens, kTileRowBytes).set(kHigh, tile.tokens, kTileRowBytes);
  shapes.set(kInput, tile.tokens, kTileRowBytes);
  shapes.set(kLowWeights, kTileRows, kTileRowBytes).set(kHighWeights, kTileRows, kTileRowBytes);
  if (left != 0) {  // a tile without bytes cannot be set
    shapes.set(kLastInput, tile.tokens, left * 4);
    shapes.set(kLastLow, left, kTileRowBytes).set(kLastHigh, left, kTileRowBytes);
  }
  shapes.load();
  tile_zero<kLow>();
  tile_zero<kHigh>();
  const std::byte* weights = tile.panel;
  const auto* line = static_cast<const std::byte*>(tile.activations);
  Prefetcher prefetcher(tile, lines + 1);
  for (std::int64_t i = 0; i < lines; ++i) {
    prefetcher.step();
    add_line<kInput, kLowWeights, kHighWeights>(line, weights);
    line += tile.tokens * kLineBytes;
    weights += kLinePairs * kPairBytes;
  }
  if (left != 0) add_line<kLastInput, kLastLow, kLastHigh>(line, weights);
  alignas(64) float sums[kLineTileTokens][kHalves][16];
  tile_store<kLow>(sums[0][0], sizeof(sums[0]));
  tile_store<kHigh>(sums[0][1], sizeof(sums[0]));
  TileShapes::release();
  for (int h = 0; h < kHalves && 16 * h < tile.rows; ++h) {
    const OutputRows out(tile, h);
    for (int t = 0; t < tile.tokens; ++t) out.store(t, _mm512_load_ps(sums[t][h]));
  }
}

void to_bf16_lines(const float* in, std::int64_t cols, std::byte* out, std::int64_t stride) {
  for (std::int64_t c = 0; c < cols; c += kBlockColumns, out += stride) {
    const std::int64_t left = cols - c;
    const auto mask = static_cast<__mmask32>(left >= 32 ? 0xFFFFFFFFU : (1U << left) - 1U);
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), in + c);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), in + c + 16);
    _mm512_storeu_si512(out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
}

}  // namespace

void add_amx_linear(CpuKernels* table) {
  table->linear[static_cast<int>(PanelFormat::kBF16)] = multiply_bf16;
  table->to_bf16_lines = to_bf16_lines;
}

const CpuKernels& amx_kernels() {
  static const CpuKernels table = [] {
    CpuKernels kernels = avx512_kernels();
    kernels.name = "amx";
    add_amx_linear(&kernels);
    add_amx_attention(&kernels);
    add_amx_peaks(&kernels);
    return kernels;
  }();
  return table;
}

}  // namespace kun
