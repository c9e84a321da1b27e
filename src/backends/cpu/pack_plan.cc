#include "backends/cpu/pack_plan.h"

#include <cmath>
#include <optional>

#include "base/check.h"
#include "tensor/float_formats.h"
#include "tensor/plane_values.h"

namespace kun {
namespace {

// Whether every scale survives as F16: to the bit, or to within the rounding of a normal number.
bool scales_fit_f16(const WeightView& view, bool exact) {
  const ScalePlane& scales = view.planes.scales;
  if (scales.type == ScaleType::kF16) return true;
  WeightView one;  // looks at one scale after the other
  one.planes.scales = {scales.data, scales.type, 1, 0, 1};
  const auto count = static_cast<std::int64_t>(scales.data.size()) / size_bytes(scales.type);
  const float tolerance = exact ? 0.0F : 0x1p-11F;
  for (std::int64_t i = 0; i < count; ++i) {
    const float scale = scale_of(one, 0, i);
    const float rounded = f16_to_f32(f32_to_f16(scale));
    if (!(std::fabs(rounded - scale) <= tolerance * std::fabs(scale))) return false;
  }
  return true;
}

// A grouped panel for codes with planes; empty when there is none.
std::optional<PanelFormat> planes_panel(const WeightView& view, bool exact) {
  const WeightPlanes& planes = view.planes;
  const bool whole = planes.group_count == 1;
  if (view.cols % kBlockColumns != 0 || !planes.group_index.empty()) return std::nullopt;
  if (view.format == WeightFormat::kE2M1) {
    if (planes.group_columns == 16) return PanelFormat::k8F32Group16;
    if (whole || planes.group_columns % kBlockColumns == 0) return PanelFormat::k8F32;
    return std::nullopt;
  }
  if (!has_integer_codes(view.format)) return std::nullopt;
  if (!whole && planes.group_columns % kBlockColumns != 0) return std::nullopt;
  if (view.format == WeightFormat::kInt8) return PanelFormat::k8F32;
  const bool f16 = scales_fit_f16(view, exact);
  const bool constant = planes.zeros.layout == ZeroLayout::kConstant;
  if (code_bits(view.format) == 4) {
    if (!f16) return PanelFormat::k8F32;
    if (constant && planes.zeros.constant == 8) return PanelFormat::k4F16;
    return exact ? PanelFormat::k8F16 : PanelFormat::k4F16Min;
  }
  if (constant && planes.zeros.constant == 128) {
    return f16 ? PanelFormat::k8F16 : PanelFormat::k8F32;
  }
  if (f16 && !exact) return PanelFormat::k8F16Min;
  return std::nullopt;
}

std::optional<PanelFormat> stored_panel(const WeightView& view, bool exact) {
  if (has_planes(view.format)) return planes_panel(view, exact);
  return grouped_panel_format(view.format);
}

WeightTarget target_of(const WeightView& view, WeightTarget target) {
  if (view.role == WeightRole::kExact && target != WeightTarget::kAsStored) {
    return WeightTarget::kAuto;
  }
  if (view.role == WeightRole::kSensitive && target == WeightTarget::kInt4) {
    return WeightTarget::kInt8;
  }
  return target;
}

}  // namespace

PackPlan plan_pack(const WeightView& view, const PackSettings& settings) {
  if (settings.compute == ComputeType::kFloat32) return {PanelFormat::kF32};
  const WeightTarget target = target_of(view, settings.target);
  if (target == WeightTarget::kBF16) return {PanelFormat::kBF16};
  const bool blocks = view.cols % kBlockColumns == 0;
  const auto stored = stored_panel(view, target == WeightTarget::kAsStored);
  if (target == WeightTarget::kInt4 && blocks && (!stored || panel_traits(*stored).bits > 4)) {
    return {PanelFormat::k4F16Min, true};
  }
  if (stored) return {*stored};
  if (target == WeightTarget::kInt8 && blocks) return {PanelFormat::k8F16, true};
  // Eight-bit floats, and reordered columns: bfloat16 where it multiplies fast, else 8-bit codes.
  const bool narrow = has_planes(view.format);
  if (narrow && target == WeightTarget::kAuto && !settings.fast_bf16 && blocks) {
    return {PanelFormat::k8F16, true};
  }
  return {view.format == WeightFormat::kF32 ? PanelFormat::kF32 : PanelFormat::kBF16};
}

void unpack_planes(const WeightView& view, std::int64_t row, std::int64_t block, PanelFormat format,
                   UnpackedBlock* out) {
  const PanelTraits traits = panel_traits(format);
  const std::int64_t first = block * kBlockColumns;
  if (view.format == WeightFormat::kE2M1) {
    read_e2m1_doubled(view, row, first, kBlockColumns, out->codes);
    for (int g = 0; g < kBlockColumns / traits.group; ++g) {
      const std::int64_t group = group_of(view, first + g * traits.group);
      out->scale_f32[g] = 0.5F * scale_of(view, row, group) * view.tensor_scale;
    }
    return;
  }
  const std::int64_t group = group_of(view, first);
  const int zero = zero_of(view, row, group);
  const float scale = scale_of(view, row, group);
  // With a minimum, w = scale * (code - base) + scale * (base - zero), so that codes fit a byte.
  const int base = !traits.has_min ? zero : code_bits(view.format) == 8 ? 128 : 0;
  std::int16_t codes[kBlockColumns];
  read_codes(view, row, first, kBlockColumns, codes);
  for (int i = 0; i < kBlockColumns; ++i) {
    out->codes[i] = static_cast<std::int8_t>(codes[i] - base);
  }
  out->scale_f32[0] = scale;
  out->scale_f16 = f32_to_f16(scale);
  out->min_f16 = f32_to_f16(scale * static_cast<float>(base - zero));
}

}  // namespace kun
