#include "backends/cpu/grouped_product.h"

#include <algorithm>

#include "backends/cpu/cpu_ops.h"
#include "base/check.h"

namespace kun {
namespace {

constexpr std::int64_t kItemsPerThread = 8;
// Less is not worth fetching from the queue; more leaves the last thread alone for too long.
constexpr std::int64_t kItemBytesMin = std::int64_t{32} << 10;
constexpr std::int64_t kItemBytesMax = std::int64_t{1} << 20;
// As in cpu_linear.cc: beyond this many rows, a tile of them meets several panels while it is in
// the first-level cache; up to it, a panel meets all tiles.
constexpr std::int64_t kStreamingRowsMax = 72;
bool streams(const ProductRows& part) {
  return part.count <= kStreamingRowsMax;
}
constexpr std::int64_t kPanelsPerPass = 4;

std::int64_t panel_count(const ProductGroup& group, bool gated) {
  return gated ? group.weight->segments.front().panel_count() : group.weight->panel_count();
}

void clamp_gate(float limit, float* gate, float* up) {
  for (int i = 0; i < kPanelRows; ++i) {
    gate[i] = std::min(gate[i], limit);
    up[i] = std::clamp(up[i], -limit, limit);
  }
}

}  // namespace

// Gives every part room for its forms.
void GroupedProduct::place_forms(const Input& input, std::span<const ProductGroup> groups) {
  offsets_.assign(input.parts.size() * kInputFormCount, -1);
  std::int64_t bytes = 0;
  for (const ProductGroup& group : groups) {
    const ProductRows& part = input.parts[group.rows];
    CHECK(group.weight->cols == part.cols);
    for (const PackedSegment& segment : group.weight->segments) {
      const InputForm form = input_form(kernels_, segment.format);
      std::int64_t& offset =
          offsets_[group.rows * kInputFormCount + static_cast<std::size_t>(form)];
      if (offset >= 0) continue;
      offset = bytes;
      bytes += (part.count * input_bytes(form, part.cols) + 63) / 64 * 64;
    }
  }
  std::byte* base = scratch_.get(bytes);
  converted_.assign(input.parts.size(), {});
  for (std::size_t p = 0; p < input.parts.size(); ++p) {
    for (std::size_t form = 0; form < kInputFormCount; ++form) {
      const std::int64_t offset = offsets_[p * kInputFormCount + form];
      if (offset >= 0) converted_[p].forms[form] = base + offset;
    }
  }
}

void GroupedProduct::convert_tile(const Input& input, std::size_t index, std::int64_t tile,
                                  InputForm form) const {
  const ProductRows& part = input.parts[index];
  const TokenTiles tiles = tiles_of(part);
  const std::int64_t count = tiles.size(tile);
  std::byte* base = converted_[index].forms[static_cast<std::size_t>(form)] +
                    tiles.first(tile) * input_bytes(form, part.cols);
  for (std::int64_t lane = 0; lane < count; ++lane) {
    const float* x = input.rows[static_cast<std::size_t>(part.first + tiles.first(tile) + lane)];
    convert_token(kernels_, form, x, part.cols, lane, count, base);
  }
}

void GroupedProduct::convert(const Input& input, std::span<const ProductGroup> groups) {
  place_forms(input, groups);
  tile_tokens_ = kLineTileTokens;
  for (const ProductGroup& group : groups) {
    tile_tokens_ = std::min(tile_tokens_, tile_tokens(kernels_, *group.weight));
  }
  tiles_.clear();
  for (std::size_t p = 0; p < input.parts.size(); ++p) {
    const std::int64_t count = tiles_of(input.parts[p]).count;
    for (std::int64_t t = 0; t < count; ++t) tiles_.emplace_back(p, t);
  }
  pool_.run(static_cast<std::int64_t>(tiles_.size()), [&](std::int64_t i, int) {
    const auto& [part, tile] = tiles_[static_cast<std::size_t>(i)];
    for (std::size_t form = 0; form < kInputFormCount; ++form) {
      if (converted_[part].forms[form] == nullptr) continue;
      convert_tile(input, part, tile, static_cast<InputForm>(form));
    }
  });
}

// Runs of panels of about equal cost in bytes, which with few rows is their cost in time.
void GroupedProduct::cut(const Input& input, std::span<const ProductGroup> groups, bool gated) {
  std::int64_t bytes = 0;
  for (const ProductGroup& group : groups) bytes += group.weight->bytes;
  const std::int64_t item_bytes =
      std::clamp(bytes / (kItemsPerThread * pool_.thread_count()), kItemBytesMin, kItemBytesMax);
  items_.clear();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::int64_t panels = panel_count(groups[g], gated);
    std::int64_t step = std::max<std::int64_t>(1, item_bytes * panels / groups[g].weight->bytes);
    if (!streams(input.parts[groups[g].rows])) step = std::min(step, kPanelsPerPass);
    for (std::int64_t first = 0; first < panels; first += step) {
      items_.push_back({static_cast<std::int32_t>(g), static_cast<std::int32_t>(first),
                        static_cast<std::int32_t>(std::min(panels, first + step))});
    }
  }
}

// body(panel, tile): every panel meets all tiles, or, of many, every tile all panels of the item.
template <class Body>
void GroupedProduct::for_each_tile(const Item& item, const ProductRows& part,
                                   const Body& body) const {
  const std::int64_t tiles = tiles_of(part).count;
  if (!streams(part)) {
    for (std::int64_t t = 0; t < tiles; ++t) {
      for (std::int64_t p = item.first_panel; p < item.end_panel; ++p) body(p, t);
    }
    return;
  }
  for (std::int64_t p = item.first_panel; p < item.end_panel; ++p) {
    for (std::int64_t t = 0; t < tiles; ++t) body(p, t);
  }
}

// Has `call` bring the tile's share of the panel that comes next into the cache, if that pays.
void GroupedProduct::prefetch_share(const ProductGroup& group, std::int64_t panel,
                                    std::int64_t tile, const TokenTiles& tiles,
                                    LinearTile* call) const {
  call->prefetch_bytes = 0;
  if (tiles.tokens > kStreamingRowsMax || panel >= group.weight->panel_count()) return;
  const PanelPlace place = group.weight->locate(panel);
  if (!prefetch_pays(place.segment->format, tiles.tokens)) return;
  const std::int64_t lines = (place.segment->panel_bytes + 63) / 64;
  const std::int64_t share = (lines + tiles.count - 1) / tiles.count * 64;
  call->prefetch = group.weight->panel(*place.segment, place.index) + tile * share;
  call->prefetch_bytes = share;
}

// call->out must point at the tile's first row and the panel's first column. `next`: the panel to
// bring nearer meanwhile, or panel_count() where none is known.
void GroupedProduct::call_kernel(const Input& input, const ProductGroup& group, std::int64_t panel,
                                 std::int64_t next, std::int64_t tile, LinearTile* call) const {
  const PanelPlace place = group.weight->locate(panel);
  const PackedSegment& segment = *place.segment;
  const ProductRows& part = input.parts[group.rows];
  const TokenTiles tiles = tiles_of(part);
  const InputForm form = input_form(kernels_, segment.format);
  call->panel = group.weight->panel(segment, place.index);
  call->cols = group.weight->cols;
  call->activations = converted_[group.rows].forms[static_cast<std::size_t>(form)] +
                      tiles.first(tile) * input_bytes(form, part.cols);
  call->tokens = tiles.size(tile);
  call->rows = static_cast<int>(
      std::min<std::int64_t>(kPanelRows, segment.row_count - place.index * kPanelRows));
  prefetch_share(group, next, tile, tiles, call);
  kernels_.linear[static_cast<std::size_t>(segment.format)](*call);
}

void GroupedProduct::multiply(const Input& input, std::span<const ProductGroup> groups,
                              std::int64_t out_stride) {
  convert(input, groups);
  cut(input, groups, false);
  pool_.run(static_cast<std::int64_t>(items_.size()), [&](std::int64_t i, int) {
    const Item& item = items_[static_cast<std::size_t>(i)];
    const ProductGroup& group = groups[static_cast<std::size_t>(item.group)];
    const TokenTiles tiles = tiles_of(input.parts[group.rows]);
    LinearTile call{};
    call.out_stride = out_stride;
    for_each_tile(item, input.parts[group.rows], [&](std::int64_t panel, std::int64_t tile) {
      call.out = group.out + tiles.first(tile) * out_stride + group.weight->locate(panel).row;
      call_kernel(input, group, panel, panel + 1, tile, &call);
    });
  });
}

// With one tile the gate panels of an item are one stream of memory and the up panels another: to
// go back and forth would start the hardware's prefetcher anew at every panel. Requires: panels are
// whole.
void GroupedProduct::stream_gated(const Input& input, const ProductGroup& group, const Item& item,
                                  std::int64_t out_stride, float limit) const {
  alignas(64) float ups[kLineTileTokens * kPanelRows];
  const std::int64_t half = group.weight->segments.front().panel_count();
  LinearTile call{};
  call.out_stride = out_stride;
  for (std::int64_t p = item.first_panel; p < item.end_panel; ++p) {
    const std::int64_t next = p + 1 < item.end_panel ? p + 1 : half + item.first_panel;
    call.out = group.out + p * kPanelRows;
    call_kernel(input, group, p, next, 0, &call);
  }
  call.out_stride = kPanelRows;
  call.out = ups;
  for (std::int64_t p = item.first_panel; p < item.end_panel; ++p) {
    // The next item's gates follow this one's.
    const std::int64_t next = p + 1 < item.end_panel || p + 1 == half ? half + p + 1 : p + 1;
    call_kernel(input, group, half + p, next, 0, &call);
    for (int i = 0; i < call.tokens; ++i) {
      float* gate = group.out + i * out_stride + p * kPanelRows;
      float* up = ups + i * kPanelRows;
      if (limit != 0.0F) clamp_gate(limit, gate, up);
      kernels_.silu_gate(gate, up, gate, kPanelRows);
    }
  }
}

// A panel of gates and the panel of ups beside it; gates wait in a buffer, too, because the last
// panel may be narrower than the kernels' vectors.
void GroupedProduct::multiply_gated_panel(const Input& input, const ProductGroup& group,
                                          std::int64_t panel, std::int64_t tile,
                                          std::int64_t out_stride, float limit) const {
  alignas(64) float gates[kLineTileTokens * kPanelRows];
  alignas(64) float ups[kLineTileTokens * kPanelRows];
  const PackedSegment& half = group.weight->segments.front();
  const TokenTiles tiles = tiles_of(input.parts[group.rows]);
  LinearTile call{};
  call.out_stride = kPanelRows;
  call.out = gates;
  call_kernel(input, group, panel, panel + 1, tile, &call);
  call.out = ups;
  const std::int64_t beside = half.panel_count() + panel;
  call_kernel(input, group, beside, beside + 1, tile, &call);
  for (int i = 0; i < call.tokens; ++i) {
    float* gate = gates + i * kPanelRows;
    float* up = ups + i * kPanelRows;
    if (limit != 0.0F) clamp_gate(limit, gate, up);
    kernels_.silu_gate(
        gate, up, group.out + (tiles.first(tile) + i) * out_stride + panel * kPanelRows, call.rows);
  }
}

void GroupedProduct::multiply_gated(const Input& input, std::span<const ProductGroup> groups,
                                    std::int64_t out_stride, float limit) {
  for (const ProductGroup& group : groups) {
    const std::vector<PackedSegment>& segments = group.weight->segments;
    CHECK(segments.size() == 2 && segments[0].row_count == segments[1].row_count);
  }
  convert(input, groups);
  cut(input, groups, true);
  pool_.run(static_cast<std::int64_t>(items_.size()), [&](std::int64_t i, int) {
    const Item& item = items_[static_cast<std::size_t>(i)];
    const ProductGroup& group = groups[static_cast<std::size_t>(item.group)];
    const ProductRows& part = input.parts[group.rows];
    if (tiles_of(part).count == 1 && group.weight->segments.front().row_count % kPanelRows == 0) {
      return stream_gated(input, group, item, out_stride, limit);
    }
    for_each_tile(item, part, [&](std::int64_t panel, std::int64_t tile) {
      multiply_gated_panel(input, group, panel, tile, out_stride, limit);
    });
  });
}

}  // namespace kun
