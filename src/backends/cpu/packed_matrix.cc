#include "backends/cpu/packed_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backends/cpu/pack_direct.h"
#include "backends/cpu/unpack.h"
#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

// Far above any model, far below what could overflow a byte count.
constexpr std::int64_t kRowsMax = std::int64_t{1} << 28;
constexpr std::int64_t kColsMax = std::int64_t{1} << 24;

Status check_view(const WeightView& view, std::int64_t cols) {
  if (view.rows < 1 || view.rows > kRowsMax || view.cols < 1 || view.cols > kColsMax) {
    return invalid_argument(
        fmt::format("cannot pack a weight matrix of {} x {}", view.rows, view.cols));
  }
  if (view.cols != cols) {
    return invalid_argument(
        fmt::format("cannot fuse weight matrices of {} and {} columns", cols, view.cols));
  }
  const BlockShape shape = block_shape(view.format);
  const bool planes = has_planes(view.format);
  if (!planes && view.cols % shape.columns != 0) {
    return invalid_argument(fmt::format("{} columns are not a multiple of {}'s block of {}",
                                        view.cols, name(view.format), shape.columns));
  }
  const std::int64_t bytes = (planes ? view.planes.stored_rows : view.rows) * view.row_bytes();
  if (static_cast<std::int64_t>(view.data.size()) < bytes) {
    return data_loss(fmt::format("a {} x {} matrix in {} needs {} bytes and has {}", view.rows,
                                 view.cols, name(view.format), bytes, view.data.size()));
  }
  if (view.tensor_scale != 1.0F && view.format != WeightFormat::kNVFP4 && !planes) {
    return unimplemented(
        fmt::format("a tensor scale is only known for NVFP4, not for {}", name(view.format)));
  }
  return {};
}

std::byte* put(std::byte* out, const void* value, std::size_t size) {
  std::memcpy(out, value, size);
  return out + size;
}

void put_codes(const UnpackedBlock& block, PanelTraits traits, int row, std::byte* codes) {
  if (traits.bits == 8) {
    for (int quad = 0; quad < kBlockColumns / 4; ++quad) {
      std::memcpy(codes + (quad * kPanelRows + row) * 4, block.codes + quad * 4, 4);
    }
    return;
  }
  CHECK(traits.bits == 4);  // what has 6 is packed directly
  for (int pair = 0; pair < kBlockColumns / 8; ++pair) {
    for (int i = 0; i < 4; ++i) {
      const int low = block.codes[8 * pair + i] + code_offset(traits);
      const int high = block.codes[8 * pair + 4 + i] + code_offset(traits);
      codes[(pair * kPanelRows + row) * 4 + i] = static_cast<std::byte>(low | high << 4);
    }
  }
}

// Scales, then mins: planes of [group][row].
void put_scales(const UnpackedBlock& block, PanelTraits traits, int row, std::byte* scales) {
  const int size = scale_bytes(traits.scale);
  std::byte* mins = scales + scale_plane_bytes(traits);
  for (int g = 0; g < kBlockColumns / traits.group; ++g) {
    const int at = (g * kPanelRows + row) * size;
    switch (traits.scale) {
      case ScaleKind::kF16:
        put(scales + at, &block.scale_f16, 2);
        if (traits.has_min) put(mins + at, &block.min_f16, 2);
        break;
      case ScaleKind::kF32: put(scales + at, &block.scale_f32[g], 4); break;
      case ScaleKind::kSuper:
        put(scales + at, &block.scale_steps[g], 1);
        if (traits.has_min) put(mins + at, &block.min_steps[g], 1);
        break;
    }
  }
}

// Block `b` of a row in the panel's codes; `values` is the row dequantized if the plan quantizes.
void make_block(const WeightView& view, std::int64_t row, std::int64_t b, const PackPlan& plan,
                const float* values, UnpackedBlock* block) {
  if (plan.quantize) {
    quantize_block(values + b * kBlockColumns, plan.format, block);
  } else if (has_planes(view.format)) {
    unpack_planes(view, row, b, plan.format, block);
  } else {
    unpack_block(view.format, view.data.data() + row * view.row_bytes(), b, view.tensor_scale,
                 block);
  }
}

void pack_grouped_row(const WeightView& view, std::int64_t row, const PackPlan& plan, int lane,
                      float* values, std::byte* panel) {
  const PanelTraits traits = panel_traits(plan.format);
  const bool super = traits.scale == ScaleKind::kSuper;
  if (plan.quantize) dequantize_row(view, row, values);
  UnpackedBlock block{};
  for (std::int64_t b = 0; b < view.cols / kBlockColumns; ++b) {
    make_block(view, row, b, plan, values, &block);
    if (super && b % kSuperBlocks == 0) {
      put(panel + lane * 2, &block.super_scale_f16, 2);
      if (traits.has_min) put(panel + (kPanelRows + lane) * 2, &block.super_min_f16, 2);
      panel += header_bytes(traits);
    }
    put_codes(block, traits, lane, panel);
    put_scales(block, traits, lane, panel + code_bytes(traits));
    panel += block_bytes(traits);
  }
}

void pack_float_row(const WeightView& view, std::int64_t row, PanelFormat format, int lane,
                    float* values, std::byte* panel) {
  dequantize_row(view, row, values);
  for (std::int64_t c = 0; c < view.cols; ++c) {
    if (format == PanelFormat::kF32) {
      put(panel + (c * kPanelRows + lane) * 4, &values[c], 4);
    } else {
      const std::uint16_t bits = f32_to_bf16(values[c]);
      put(panel + ((c / 2 * kPanelRows + lane) * 2 + c % 2) * 2, &bits, 2);
    }
  }
}

void pack_panel(const WeightView& view, const PackPlan& plan, std::int64_t index, float* values,
                std::byte* panel) {
  const PanelTraits traits = panel_traits(plan.format);
  const std::int64_t first = index * kPanelRows;
  const auto rows = static_cast<int>(std::min<std::int64_t>(kPanelRows, view.rows - first));
  if (view.format == WeightFormat::kBF16 && plan.format == PanelFormat::kBF16) {
    return pack_bf16_panel(view, first, rows, panel);
  }
  const bool direct = !plan.quantize && packs_directly(view.format) &&
                      plan.format == grouped_panel_format(view.format);
  for (int lane = 0; lane < rows; ++lane) {
    if (traits.group == 0) {
      pack_float_row(view, first + lane, plan.format, lane, values, panel);
    } else if (direct) {
      pack_row_directly(view, first + lane, lane, panel);
    } else {
      pack_grouped_row(view, first + lane, plan, lane, values, panel);
    }
  }
}

}  // namespace

std::int64_t panel_bytes(PanelFormat format, std::int64_t cols) {
  const PanelTraits traits = panel_traits(format);
  std::int64_t bytes = 0;
  if (format == PanelFormat::kF32) {
    bytes = cols * kPanelRows * 4;
  } else if (format == PanelFormat::kBF16) {
    bytes = (cols + 1) / 2 * kPanelRows * 4;
  } else {
    const std::int64_t blocks = cols / kBlockColumns;
    bytes = blocks * block_bytes(traits) + blocks / kSuperBlocks * header_bytes(traits);
  }
  return (bytes + 63) / 64 * 64;
}

Result<std::unique_ptr<PackedMatrix>> pack_matrix(std::span<const WeightView> views,
                                                  const PackSettings& settings, ThreadPool& pool,
                                                  Slabs& slabs) {
  if (views.empty()) return invalid_argument("cannot pack a weight matrix of no parts");
  auto matrix = std::make_unique<CpuPackedMatrix>();
  matrix->cols = views.front().cols;
  std::vector<PackPlan> plans;
  for (const WeightView& view : views) {
    RETURN_IF_ERROR(check_view(view, matrix->cols));
    PackedSegment segment;
    plans.push_back(plan_pack(view, settings));
    segment.format = plans.back().format;
    segment.first_row = matrix->rows;
    segment.row_count = view.rows;
    segment.panel_bytes = panel_bytes(segment.format, view.cols);
    segment.offset = matrix->bytes;
    matrix->rows += view.rows;
    matrix->bytes += segment.panel_count() * segment.panel_bytes;
    matrix->segments.push_back(segment);
  }
  matrix->data = slabs.take(matrix->bytes);
  if (matrix->data == nullptr) {
    return resource_exhausted(
        fmt::format("not enough memory for {} bytes of packed weights", matrix->bytes));
  }
  std::vector<Scratch> rows(static_cast<std::size_t>(pool.thread_count()));
  for (std::size_t i = 0; i < views.size(); ++i) {
    const PackedSegment& segment = matrix->segments[i];
    pool.run(segment.panel_count(), [&](std::int64_t panel, int worker) {
      float* values = rows[static_cast<std::size_t>(worker)].get_array<float>(matrix->cols);
      std::byte* out = matrix->data.get() + segment.offset + panel * segment.panel_bytes;
      pack_panel(views[i], plans[i], panel, values, out);
    });
  }
  return std::unique_ptr<PackedMatrix>(std::move(matrix));
}

}  // namespace kun
