#include "backends/cpu/input_tiles.h"

#include <algorithm>

namespace kun {
namespace {

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace

InputForm input_form(const CpuKernels& kernels, PanelFormat format) {
  if (format == PanelFormat::kF32) return InputForm::kFloats;
  if (format != PanelFormat::kBF16) return InputForm::kBlocks;
  if (!kernels.rounds_to_bf16) return InputForm::kFloats;
  return kernels.to_bf16_lines == nullptr ? InputForm::kBf16Pairs : InputForm::kBf16Lines;
}

int tile_tokens(const CpuKernels& kernels, const CpuPackedMatrix& weight) {
  int tokens = kLineTileTokens;
  for (const PackedSegment& segment : weight.segments) {
    tokens = std::min(tokens, tile_tokens(input_form(kernels, segment.format)));
  }
  return tokens;
}

std::int64_t input_bytes(InputForm form, std::int64_t cols) {
  switch (form) {
    case InputForm::kFloats: return cols * 4;
    case InputForm::kBf16Pairs: return (cols + 1) / 2 * 4;
    case InputForm::kBf16Lines: return (cols + kBlockColumns - 1) / kBlockColumns * kLineBytes;
    case InputForm::kBlocks:
      return cols / kBlockColumns * static_cast<std::int64_t>(sizeof(ActivationBlock));
  }
  return 0;
}

// With few tokens a panel takes less time than the next one needs to arrive. On Zen 4 the
// hardware's own prefetching then reads faster undisturbed: GB/s of one core without and with, 4
// bits, 2 tokens 28 and 24, 3 tokens 24 and 31, 4 tokens 19 and 25; 8 bits, 4 tokens 25 and 22, 5
// tokens 21 and 26. On a Xeon of the fourth generation or later it does not: two cores, 1 token, 4
// bits 22.6 and 29.3, 8 bits 27.8 and 30.3, BF16 26.3 and 28.7, where memory gives 31.
bool prefetch_pays(PanelFormat format, std::int64_t tokens) {
  static const bool always = is_intel();
  return always || tokens >= (panel_traits(format).bits == 4 ? 3 : 5);
}

void convert_token(const CpuKernels& kernels, InputForm form, const float* in, std::int64_t cols,
                   std::int64_t lane, std::int64_t tokens, std::byte* tile) {
  switch (form) {
    case InputForm::kFloats: {
      auto* out = reinterpret_cast<float*>(tile) + lane;
      for (std::int64_t c = 0; c < cols; ++c) out[c * tokens] = in[c];
      return;
    }
    case InputForm::kBf16Pairs:
      return kernels.to_bf16_pairs(in, cols, reinterpret_cast<std::uint32_t*>(tile) + lane, tokens);
    case InputForm::kBf16Lines:
      return kernels.to_bf16_lines(in, cols, tile + lane * kLineBytes, tokens * kLineBytes);
    case InputForm::kBlocks:
      return kernels.quantize(in, cols, reinterpret_cast<ActivationBlock*>(tile) + lane, tokens);
  }
}

}  // namespace kun
