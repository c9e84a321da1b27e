// Linear products: converts the input once, then lets the pool work through (panels, tokens) tiles.
#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "base/check.h"

namespace kun {
namespace {

// Up to this many tokens a panel meets them all while the next panel is prefetched; beyond, a tile
// of tokens meets a few panels while the next tile is.
constexpr std::int64_t kStreamingTokensMax = 72;
constexpr std::int64_t kPanelsPerPassMax = 4;
// What those panels, the tile and the next one may take of the second-level cache. One core, share
// of the int8 peak for 512 tokens: Q4_0 of 8960 columns .76 with 1 to 4 panels; Q8_0, of which one
// fits, .76 with 1 and .73 with 4. Without prefetching the next tile .71 and .73.
constexpr std::int64_t kPassBytes = std::int64_t{768} << 10;
// Smaller tiles arrive fast enough by themselves.
constexpr std::int64_t kPrefetchTileBytesMin = std::int64_t{32} << 10;
// How much of a matrix one item takes: long streams where the hardware prefetches, else short ones,
// whose last costs little to wait for.
constexpr std::int64_t kStreamBytes = std::int64_t{1} << 20;
constexpr std::int64_t kItemBytes = std::int64_t{32} << 10;
constexpr std::int64_t kItemsPerThread = 4;

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Has `call` prefetch the part of a panel that is the tile's to fetch, if that pays.
void prefetch_panel(const CpuPackedMatrix& weight, std::int64_t panel, const TokenTiles& tiles,
                    std::int64_t tile, LinearTile* call) {
  const PanelPlace place = weight.locate(panel);
  if (!prefetch_pays(place.segment->format, tiles.tokens)) return;
  const std::int64_t lines = divide_up(place.segment->panel_bytes, 64);
  const std::int64_t share = tiles.count == 1 ? lines : divide_up(lines, tiles.count);
  call->prefetch = weight.panel(*place.segment, place.index) + tile * share * 64;
  call->prefetch_bytes = share * 64;
}

// How many panels, or pairs of them, a tile meets when there are many tiles.
std::int64_t panels_per_pass(const CpuPackedMatrix& weight, std::int64_t panels,
                             const TokenTiles& tiles) {
  const std::int64_t tile_bytes = divide_up(tiles.tokens, tiles.count) * 2 * weight.cols;
  const std::int64_t fitting = (kPassBytes - 2 * tile_bytes) * panels / weight.bytes;
  return std::clamp<std::int64_t>(fitting, 1, kPanelsPerPassMax);
}

// How (panels x token tiles) are cut: big enough to stream, small enough to share.
struct WorkGrid {
  // `panels` may be pairs of a gate and an up panel.
  WorkGrid(const CpuPackedMatrix& weight, std::int64_t panels, const TokenTiles& tiles,
           int thread_count) {
    const std::int64_t wanted = thread_count == 1 ? 1 : kItemsPerThread * thread_count;
    const bool prefetches = prefetch_pays(weight.segments.front().format, tiles.tokens);
    const std::int64_t bytes = prefetches ? kItemBytes : kStreamBytes;
    const std::int64_t size = tiles.tokens > kStreamingTokensMax
                                  ? panels_per_pass(weight, panels, tiles)
                                  : bytes * panels / weight.bytes;
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

    std::int64_t panel_count() const { return end_panel - first_panel; }
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
void for_each_tile(const WorkGrid::Item& range, bool streams, const Body& body) {
  if (!streams) {
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

void CpuOps::convert_tokens(ConstTensorView in, const TokenTiles& tiles, InputForm form,
                            std::byte* out) {
  const std::int64_t token_bytes = input_bytes(form, in.cols());
  run_rows(in.rows(), in.cols(), [&](std::int64_t token) {
    const std::int64_t tile = ((token + 1) * tiles.count - 1) / tiles.tokens;
    const std::int64_t first = tiles.first(tile);
    convert_token(kernels_, form, in.row<float>(token), in.cols(), token - first, tiles.size(tile),
                  out + first * token_bytes);
  });
}

CpuOps::PreparedInput CpuOps::prepare_input(ConstTensorView in, const CpuPackedMatrix& weight) {
  PreparedInput input(TokenTiles(in.rows(), tile_tokens(kernels_, weight)));
  for (const PackedSegment& segment : weight.segments) {
    const InputForm form = input_form(kernels_, segment.format);
    const auto index = static_cast<std::size_t>(form);
    if (input.forms[index] != nullptr) continue;
    input.token_bytes[index] = input_bytes(form, in.cols());
    if (form == InputForm::kFloats && in.rows() == 1) {
      input.forms[index] = in.row<float>(0);
      continue;
    }
    std::byte* out = input_scratch_[index].get(in.rows() * input.token_bytes[index]);
    convert_tokens(in, input.tiles, form, out);
    input.forms[index] = out;
  }
  return input;
}

// Fills in what depends on the panel and the tile of tokens, and runs the kernel. call->out must
// already point at the first token and row, bias at the panel's first row.
void CpuOps::multiply_panel(const CpuPackedMatrix& weight, const PanelPlace& place,
                            const PreparedInput& input, std::int64_t tile, LinearTile* call) const {
  const PackedSegment& segment = *place.segment;
  const auto form = static_cast<std::size_t>(input_form(kernels_, segment.format));
  call->panel = weight.panel(segment, place.index);
  call->cols = weight.cols;
  call->activations = input.tile(form, tile);
  call->tokens = input.tiles.size(tile);
  call->rows = static_cast<int>(
      std::min<std::int64_t>(kPanelRows, segment.row_count - place.index * kPanelRows));
  kernels_.linear[static_cast<std::size_t>(segment.format)](*call);
}

// Has `call` prefetch the index-th of `count` parts of a tile of the input.
void CpuOps::prefetch_tile(const PreparedInput& input, InputForm form, std::int64_t tile,
                           std::int64_t index, std::int64_t count, LinearTile* call) {
  const auto at = static_cast<std::size_t>(form);
  const std::int64_t bytes = input.tiles.size(tile) * input.token_bytes[at];
  if (bytes < kPrefetchTileBytesMin) return;
  const std::int64_t share = divide_up(divide_up(bytes, 64), count) * 64;
  call->prefetch = input.tile(at, tile) + index * share;
  call->prefetch_bytes = share;
}

void CpuOps::run_tiles(const CpuPackedMatrix& weight, const PreparedInput& input, const float* bias,
                       LinearOutput mode, TensorView out) {
  const std::int64_t panels = weight.panel_count();
  const TokenTiles& tiles = input.tiles;
  const WorkGrid grid(weight, panels, tiles, pool_.thread_count());
  const bool streams = tiles.tokens <= kStreamingTokensMax;
  pool_.run(grid.count(), [&](std::int64_t item, int) {
    const WorkGrid::Item range = grid.item(item, panels, tiles.count);
    LinearTile call{};
    call.out_stride = out.stride[0];
    call.accumulate = mode == LinearOutput::kAccumulate;
    for_each_tile(range, streams, [&](std::int64_t p, std::int64_t t) {
      const PanelPlace place = weight.locate(p);
      call.out = out.row<float>(tiles.first(t)) + place.row;
      call.bias = bias == nullptr ? nullptr : bias + place.row;
      call.prefetch_bytes = 0;
      if (streams && p + 1 < panels) prefetch_panel(weight, p + 1, tiles, t, &call);
      if (!streams && t + 1 < range.end_tile) {
        prefetch_tile(input, input_form(kernels_, place.segment->format), t + 1,
                      p - range.first_panel, range.panel_count(), &call);
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

// Gates and ups of `panels` panels from `first` on and one tile of tokens, [panel][token][row],
// become rows of floats, or blocks of the product behind, which lie in the same order.
void CpuOps::join_gated(float* gates, const float* ups, const TokenTiles& tiles, std::int64_t tile,
                        std::int64_t first, std::int64_t panels, const GatedOutput& out) const {
  const int tokens = tiles.size(tile);
  if (out.blocks != nullptr) {
    const std::int64_t size = panels * tokens * kPanelRows;
    kernels_.silu_gate(gates, ups, gates, size);
    ActivationBlock* blocks = out.blocks + tiles.first(tile) * (out.rows.cols() / kBlockColumns);
    kernels_.quantize(gates, size, blocks + first * tokens, 1);
    return;
  }
  for (std::int64_t i = 0; i < panels * tokens; ++i) {
    float* row = out.rows.row<float>(tiles.first(tile) + i % tokens);
    kernels_.silu_gate(gates + i * kPanelRows, ups + i * kPanelRows,
                       row + (first + i / tokens) * kPanelRows, kPanelRows);
  }
}

// With one tile of tokens, gate panels are one stream of memory and up panels another: to go back
// and forth would start the hardware's prefetcher anew at every panel. Gates wait in `out.rows`.
void CpuOps::stream_gated(const CpuPackedMatrix& weight, const PreparedInput& input,
                          std::int64_t first, std::int64_t end, const GatedOutput& out) const {
  alignas(64) float gates[kLineTileTokens * kPanelRows];
  alignas(64) float ups[kLineTileTokens * kPanelRows];
  const TokenTiles& tiles = input.tiles;
  const std::int64_t pairs = out.rows.cols() / kPanelRows;
  LinearTile call{};
  const auto multiply = [&](std::int64_t panel) {
    call.prefetch_bytes = 0;
    if (panel % pairs + 1 < pairs) prefetch_panel(weight, panel + 1, tiles, 0, &call);
    multiply_panel(weight, weight.locate(panel), input, 0, &call);
  };
  call.out_stride = out.rows.stride[0];
  for (std::int64_t p = first; p < end; ++p) {
    call.out = out.rows.row<float>(0) + p * kPanelRows;
    multiply(p);
  }
  call.out = ups;
  call.out_stride = kPanelRows;
  for (std::int64_t p = first; p < end; ++p) {
    multiply(p + pairs);
    for (std::int64_t t = 0; t < tiles.tokens; ++t) {
      std::copy_n(out.rows.row<float>(t) + p * kPanelRows, kPanelRows, gates + t * kPanelRows);
    }
    join_gated(gates, ups, tiles, 0, p, 1, out);
  }
}

// Gates and ups meet while they are in the first-level cache: what is wide is never written. The
// operations are those of linear, silu_gate and, for blocks, the next product's quantization.
void CpuOps::run_gated(const CpuPackedMatrix& weight, const PreparedInput& input,
                       const GatedOutput& out) {
  const std::int64_t pairs = weight.rows / 2 / kPanelRows;
  const TokenTiles& tiles = input.tiles;
  const WorkGrid grid(weight, pairs, tiles, pool_.thread_count());
  const bool streams = tiles.tokens <= kStreamingTokensMax;
  pool_.run(grid.count(), [&](std::int64_t item, int) {
    const WorkGrid::Item range = grid.item(item, pairs, tiles.count);
    if (tiles.count == 1) {
      stream_gated(weight, input, range.first_panel, range.end_panel, out);
      return;
    }
    alignas(64) float gates[kPanelsPerPassMax * kLineTileTokens * kPanelRows];
    alignas(64) float ups[kPanelsPerPassMax * kLineTileTokens * kPanelRows];
    LinearTile call{};
    call.out_stride = kPanelRows;
    const auto multiply = [&](std::int64_t panel, std::int64_t t, float* to) {
      call.out = to;
      call.prefetch_bytes = 0;
      const PanelPlace place = weight.locate(panel);
      if (streams && panel % pairs + 1 < pairs) prefetch_panel(weight, panel + 1, tiles, t, &call);
      if (!streams && panel < pairs && t + 1 < range.end_tile) {
        prefetch_tile(input, input_form(kernels_, place.segment->format), t + 1,
                      panel - range.first_panel, range.panel_count(), &call);
      }
      multiply_panel(weight, place, input, t, &call);
    };
    // As for_each_tile, but that what has met is joined once a pass.
    const std::int64_t pass = streams ? 1 : range.panel_count();
    for (std::int64_t first = range.first_panel; first < range.end_panel; first += pass) {
      const std::int64_t count = std::min(pass, range.end_panel - first);
      for (std::int64_t t = range.first_tile; t < range.end_tile; ++t) {
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t at = i * tiles.size(t) * kPanelRows;
          multiply(first + i, t, gates + at);
          multiply(first + i + pairs, t, ups + at);
        }
        join_gated(gates, ups, tiles, t, first, count, out);
      }
    }
  });
}

bool CpuOps::halves_are_whole_panels(const CpuPackedMatrix& gate_up) {
  const std::int64_t half = gate_up.rows / 2;
  return half % kPanelRows == 0 &&
         (gate_up.segments.size() == 1 ||
          (gate_up.segments.size() == 2 && gate_up.segments[0].row_count == half));
}

// Between the two products only the second's input is written, once, by the threads that made it.
void CpuOps::gated_mlp(ConstTensorView in, const PackedMatrix& gate_up, const PackedMatrix& down,
                       ConstTensorView bias, TensorView wide, TensorView gated, TensorView out) {
  const auto& first = static_cast<const CpuPackedMatrix&>(gate_up);
  const auto& second = static_cast<const CpuPackedMatrix&>(down);
  CHECK(in.rank == 2 && in.dtype == DType::kF32 && in.cols() == first.cols);
  CHECK(gated.rank == 2 && gated.dtype == DType::kF32 && gated.rows() == in.rows());
  CHECK(gated.cols() * 2 == first.rows && gated.cols() == second.cols);
  if (in.rows() == 0) return;
  if (!halves_are_whole_panels(first)) {
    Ops::gated_mlp(in, gate_up, down, bias, wide, gated, out);
    return;
  }
  const bool takes_blocks = std::ranges::all_of(second.segments, [&](const PackedSegment& segment) {
    return input_form(kernels_, segment.format) == InputForm::kBlocks;
  });
  if (!takes_blocks || tile_tokens(kernels_, first) != kTileTokens) {
    run_gated(first, prepare_input(in, first), {gated, nullptr});
    linear(gated, down, bias, LinearOutput::kAccumulate, out);
    return;
  }
  CHECK(out.rank == 2 && out.dtype == DType::kF32 && out.rows() == in.rows());
  CHECK(out.cols() == second.rows);
  CHECK(bias.data == nullptr || (bias.dtype == DType::kF32 && bias.cols() == second.rows));
  constexpr auto kBlocks = static_cast<std::size_t>(InputForm::kBlocks);
  PreparedInput between(TokenTiles(in.rows(), kTileTokens));
  between.token_bytes[kBlocks] = input_bytes(InputForm::kBlocks, second.cols);
  std::byte* blocks = gated_scratch_.get(in.rows() * between.token_bytes[kBlocks]);
  between.forms[kBlocks] = blocks;
  run_gated(first, prepare_input(in, first), {gated, reinterpret_cast<ActivationBlock*>(blocks)});
  run_tiles(second, between, reinterpret_cast<const float*>(bias.data), LinearOutput::kAccumulate,
            out);
}

}  // namespace kun
