// The left-hand side of a product as kernels want it: tiles of tokens, in each of which what one
// step of a kernel reads lies together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.h"
#include "backends/cpu/packed_matrix.h"

namespace kun {

// How a tile holds its tokens' columns.
enum class InputForm : std::uint8_t {
  kFloats,     // float [column][token]
  kBf16Pairs,  // uint32 [pair of columns][token]
  kBf16Lines,  // uint32 [32 columns][token][16]
  kBlocks,     // ActivationBlock [32 columns][token]
};
constexpr int kInputFormCount = 4;

InputForm input_form(const CpuKernels& kernels, PanelFormat format);

// Bytes of one token.
std::int64_t input_bytes(InputForm form, std::int64_t cols);

// Tokens of a tile, at most: in a form, and where one tile meets all panels of a matrix.
constexpr int tile_tokens(InputForm form) {
  return form == InputForm::kBf16Lines ? kLineTileTokens : kTileTokens;
}
int tile_tokens(const CpuKernels& kernels, const CpuPackedMatrix& weight);

// Tiles of `token_count` tokens: as few as fit, of nearly equal size.
struct TokenTiles {
  TokenTiles(std::int64_t token_count, int size_max)
      : tokens(token_count), count((token_count + size_max - 1) / size_max) {}
  std::int64_t first(std::int64_t tile) const { return tile * tokens / count; }
  int size(std::int64_t tile) const { return static_cast<int>(first(tile + 1) - first(tile)); }

  std::int64_t tokens;
  std::int64_t count;
};

// Whether to prefetch the next panel while `tokens` tokens meet this one.
bool prefetch_pays(PanelFormat format, std::int64_t tokens);

// Writes a token into `tile` as the `lane`-th of `tokens`.
void convert_token(const CpuKernels& kernels, InputForm form, const float* in, std::int64_t cols,
                   std::int64_t lane, std::int64_t tokens, std::byte* tile);

}  // namespace kun
