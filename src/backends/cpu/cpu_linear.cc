// Linear products: converts the input once, then lets the pool work through (panels, tokens) tiles.
#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "base/check.h"

namespace kun {
namespace {

// Up to this many tiles a panel meets all tokens while the next panel is prefetched; beyond, a tile
// of tokens meets kPanelsPerPass panels while it is in the first-level cache.
constexpr std::int64_t kStreamingTilesMax = 12;
constexpr std::int64_t kPanelsPerPass = 4;
// With fewer tokens a panel is multiplied faster than the next one arrives, and prefetching it only
// disturbs the hardware's own (measured: Q8_0, 3 tokens -15 %, 6 tokens +30 %).
constexpr std::int64_t kPrefetchTokensMin = 5;
// How much of a matrix one item takes. Few tokens: long streams, which the hardware prefetches
// best. More: short ones, whose last costs little to wait for; the next panel is prefetched anyway.
constexpr std::int64_t kStreamBytes = std::int64_t{1} << 20;
constexpr std::int64_t kItemBytes = std::int64_t{32} << 10;
constexpr std::int64_t kItemsPerThread = 4;

std::int64_t token_bytes_of(std::int64_t cols, bool blocks, bool pairs) {
  if (blocks) return cols / kBlockColumns * static_cast<std::int64_t>(sizeof(ActivationBlock));
  return pairs ? (cols + 1) / 2 * 4 : cols * 4;
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Has `call` prefetch the index-th of `count` parts of a panel.
void prefetch_share(const CpuPackedMatrix& weight, std::int64_t panel, std::int64_t index,
                    std::int64_t count, LinearTile* call) {
  const PanelPlace place = weight.locate(panel);
  const std::int64_t share = divide_up(divide_up(place.segment->panel_bytes, count), 64) * 64;
  call->prefetch = weight.panel(*place.segment, place.index) + index * share;
  call->prefetch_bytes = share;
}

// How (panels x token tiles) are cut: big enough to stream, small enough to share.
struct WorkGrid {
  WorkGrid(std::int64_t panels, std::int64_t panel_bytes, const TokenTiles& tiles,
           int thread_count) {
    const std::int64_t wanted = thread_count == 1 ? 1 : kItemsPerThread * thread_count;
    const std::int64_t bytes = tiles.tokens < kPrefetchTokensMin ? kStreamBytes : kItemBytes;
    const std::int64_t size =
        tiles.count > kStreamingTilesMax ? kPanelsPerPass : bytes / panel_bytes;
    panels_per_chunk = std::clamp<std::int64_t>(size, 1, divide_up(panels, wanted));
    panel_chunks = divide_up(panels, panels_per_chunk);
    token_chunks = std::clamp<std::int64_t>(wanted / panel_chunks, 1, tiles.count);
  }
  std::int64_t count() const { return panel_chunks * token_chunks; }

  struct Item {
    std::int64_t first_panel;
    std::int64_t end_panel;
    std::int64_t first_tile;
    std::int64_t end_tile;

    std::int64_t tile_count() const { return end_tile - first_tile; }
  };
  Item item(std::int64_t index, std::int64_t panels, std::int64_t token_tiles) const {
    const std::int64_t panel = index / token_chunks * panels_per_chunk;
    const std::int64_t chunk = index % token_chunks;
    return {panel, std::min(panels, panel + panels_per_chunk), chunk * token_tiles / token_chunks,
            (chunk + 1) * token_tiles / token_chunks};
  }

  std::int64_t panels_per_chunk;
  std::int64_t panel_chunks;
  std::int64_t token_chunks;
};

// body(panel, tile) over an item: while weights stream from memory every panel meets all tokens;
// with many tokens every tile of them meets all panels while it is in the first-level cache.
template <class Body>
void for_each_tile(const WorkGrid::Item& range, std::int64_t tile_count, const Body& body) {
  if (tile_count > kStreamingTilesMax) {
    for (std::int64_t t = range.first_tile; t < range.end_tile; ++t) {
      for (std::int64_t p = range.first_panel; p < range.end_panel; ++p) body(p, t);
    }
    return;
  }
  for (std::int64_t p = range.first_panel; p < range.end_panel; ++p) {
    for (std::int64_t t = range.first_tile; t < range.end_tile; ++t) body(p, t);
  }
}

}  // namespace

CpuOps::InputForm CpuOps::input_form(PanelFormat format) const {
  if (format == PanelFormat::kF32) return InputForm::kFloat;
  if (format != PanelFormat::kBF16) return InputForm::kBlocks;
  return kernels_.rounds_to_bf16 ? InputForm::kBf16Pairs : InputForm::kFloat;
}

// [tile][column, pair or block][token of the tile]
void CpuOps::convert_tokens(ConstTensorView in, InputForm form, std::byte* out) {
  const TokenTiles tiles(in.rows());
  const std::int64_t token_bytes =
      token_bytes_of(in.cols(), form == InputForm::kBlocks, form == InputForm::kBf16Pairs);
  const auto convert = [&](std::int64_t token) {
    const std::int64_t tile = ((token + 1) * tiles.count - 1) / tiles.tokens;
    const std::int64_t stride = tiles.size(tile);
    std::byte* base = out + tiles.first(tile) * token_bytes;
    const std::int64_t lane = token - tiles.first(tile);
    const float* x = in.row<float>(token);
    if (form == InputForm::kBlocks) {
      kernels_.quantize(x, in.cols(), reinterpret_cast<ActivationBlock*>(base) + lane, stride);
    } else if (form == InputForm::kBf16Pairs) {
      kernels_.to_bf16_pairs(x, in.cols(), reinterpret_cast<std::uint32_t*>(base) + lane, stride);
    } else {
      auto* floats = reinterpret_cast<float*>(base) + lane;
      for (std::int64_t c = 0; c < in.cols(); ++c) floats[c * stride] = x[c];
    }
  };
  run_rows(in.rows(), in.cols(), convert);
}

CpuOps::PreparedInput CpuOps::prepare_input(ConstTensorView in, const CpuPackedMatrix& weight) {
  PreparedInput input;
  input.tokens = in.rows();
  for (const PackedSegment& segment : weight.segments) {
    const InputForm form = input_form(segment.format);
    const auto index = static_cast<std::size_t>(form);
    if (input.forms[index] != nullptr) continue;
    input.token_bytes[index] =
        token_bytes_of(in.cols(), form == InputForm::kBlocks, form == InputForm::kBf16Pairs);
    if (form == InputForm::kFloat && in.rows() == 1) {
      input.forms[index] = in.row<float>(0);
      continue;
    }
    std::byte* out = input_scratch_[index].get(in.rows() * input.token_bytes[index]);
    convert_tokens(in, form, out);
    input.forms[index] = out;
  }
  return input;
}

// Fills in what depends on the panel and the tile of tokens, and runs the kernel. call->out must
// already point at the first token and row, bias at the panel's first row.
void CpuOps::multiply_panel(const CpuPackedMatrix& weight, const PanelPlace& place,
                            const PreparedInput& input, std::int64_t tile, LinearTile* call) const {
  const PackedSegment& segment = *place.segment;
  const TokenTiles tiles(input.tokens);
  const auto form = static_cast<std::size_t>(input_form(segment.format));
  call->panel = weight.panel(segment, place.index);
  call->cols = weight.cols;
  call->activations = static_cast<const std::byte*>(input.forms[form]) +
                      tiles.first(tile) * input.token_bytes[form];
  call->tokens = tiles.size(tile);
  call->rows = static_cast<int>(
      std::min<std::int64_t>(kPanelRows, segment.row_count - place.index * kPanelRows));
  kernels_.linear[static_cast<std::size_t>(segment.format)](*call);
}

void CpuOps::run_tiles(const CpuPackedMatrix& weight, const PreparedInput& input, const float* bias,
                       LinearOutput mode, TensorView out) {
  const std::int64_t panels = weight.panel_count();
  const TokenTiles tiles(input.tokens);
  const WorkGrid grid(panels, weight.bytes / panels, tiles, pool_.thread_count());
  pool_.run(grid.count(), [&](std::int64_t item, int) {
    const WorkGrid::Item range = grid.item(item, panels, tiles.count);
    LinearTile call{};
    call.out_stride = out.stride[0];
    call.accumulate = mode == LinearOutput::kAccumulate;
    const bool prefetches = input.tokens >= kPrefetchTokensMin && tiles.count <= kStreamingTilesMax;
    for_each_tile(range, tiles.count, [&](std::int64_t p, std::int64_t t) {
      const PanelPlace place = weight.locate(p);
      call.out = out.row<float>(tiles.first(t)) + place.row;
      call.bias = bias == nullptr ? nullptr : bias + place.row;
      call.prefetch_bytes = 0;
      if (prefetches && p + 1 < panels) {
        prefetch_share(weight, p + 1, t - range.first_tile, range.tile_count(), &call);
      }
      multiply_panel(weight, place, input, t, &call);
    });
  });
}

void CpuOps::linear(ConstTensorView in, const PackedMatrix& packed, ConstTensorView bias,
                    LinearOutput mode, TensorView out) {
  const auto& weight = static_cast<const CpuPackedMatrix&>(packed);
  CHECK(in.rank == 2 && out.rank == 2 && in.dtype == DType::kF32 && out.dtype == DType::kF32);
  CHECK(in.cols() == weight.cols && out.cols() == weight.rows && in.rows() == out.rows());
  CHECK(bias.data == nullptr || (bias.dtype == DType::kF32 && bias.cols() == weight.rows));
  if (in.rows() == 0) return;
  run_tiles(weight, prepare_input(in, weight), reinterpret_cast<const float*>(bias.data), mode,
            out);
}

// Gates go to `out`, ups to a small buffer, and meet there: the wide intermediate result is never
// written. The operations are those of linear, then silu_gate. With one tile of tokens an item
// reads its gate panels in one stream and its up panels in another.
void CpuOps::run_silu_gate(const CpuPackedMatrix& weight, const PreparedInput& input,
                           TensorView out) {
  const std::int64_t pairs = weight.rows / 2 / kPanelRows;
  const TokenTiles tiles(input.tokens);
  const WorkGrid grid(pairs, weight.bytes / pairs, tiles, pool_.thread_count());
  pool_.run(grid.count(), [&](std::int64_t item, int) {
    const WorkGrid::Item range = grid.item(item, pairs, tiles.count);
    const bool prefetches = input.tokens >= kPrefetchTokensMin && tiles.count <= kStreamingTilesMax;
    LinearTile call{};
    const auto multiply = [&](std::int64_t panel, std::int64_t t) {
      call.prefetch_bytes = 0;
      if (prefetches && panel % pairs + 1 < pairs) {
        prefetch_share(weight, panel + 1, t - range.first_tile, range.tile_count(), &call);
      }
      multiply_panel(weight, weight.locate(panel), input, t, &call);
    };
    const auto multiply_gate = [&](std::int64_t p, std::int64_t t) {
      call.out = out.row<float>(tiles.first(t)) + p * kPanelRows;
      call.out_stride = out.stride[0];
      multiply(p, t);
    };
    const auto multiply_up = [&](std::int64_t p, std::int64_t t) {
      alignas(64) float up[kTileTokens * kPanelRows];
      call.out = up;
      call.out_stride = kPanelRows;
      multiply(p + pairs, t);
      for (int i = 0; i < tiles.size(t); ++i) {
        float* gate = out.row<float>(tiles.first(t) + i) + p * kPanelRows;
        kernels_.silu_gate(gate, up + i * kPanelRows, gate, kPanelRows);
      }
    };
    if (tiles.count == 1) {
      for (std::int64_t p = range.first_panel; p < range.end_panel; ++p) multiply_gate(p, 0);
      for (std::int64_t p = range.first_panel; p < range.end_panel; ++p) multiply_up(p, 0);
      return;
    }
    for_each_tile(range, tiles.count, [&](std::int64_t p, std::int64_t t) {
      multiply_gate(p, t);
      multiply_up(p, t);
    });
  });
}

void CpuOps::linear_silu_gate(ConstTensorView in, const PackedMatrix& packed, TensorView scratch,
                              TensorView out) {
  const auto& weight = static_cast<const CpuPackedMatrix&>(packed);
  CHECK(in.rank == 2 && out.rank == 2 && in.dtype == DType::kF32 && out.dtype == DType::kF32);
  CHECK(in.cols() == weight.cols && out.cols() * 2 == weight.rows && in.rows() == out.rows());
  if (in.rows() == 0) return;
  const std::int64_t half = weight.rows / 2;
  const bool aligned = half % kPanelRows == 0 &&
                       (weight.segments.size() == 1 ||
                        (weight.segments.size() == 2 && weight.segments[0].row_count == half));
  if (!aligned) {
    Ops::linear_silu_gate(in, packed, scratch, out);
    return;
  }
  run_silu_gate(weight, prepare_input(in, weight), out);
}

}  // namespace kun
