// Which panel a weight matrix becomes, and how its numbers get there: as the codes they are, as
// rounded floats, or quantized while packing. docs/decisions/0031 has the reasons and the errors.
#pragma once

#include "backends/cpu/kernels.h"
#include "backends/cpu/unpack.h"
#include "device/device.h"
#include "tensor/weight_view.h"

namespace kun {

struct PackSettings {
  ComputeType compute = ComputeType::kBFloat16;
  WeightTarget target = WeightTarget::kAuto;
  bool fast_bf16 = true;  // the kernels multiply bfloat16 in hardware
};

struct PackPlan {
  PanelFormat format = PanelFormat::kF32;
  bool quantize = false;  // the codes are made here, from dequantized values
};

// Never fails: what no grouped panel can hold becomes BF16, or F32 under ComputeType::kFloat32.
PackPlan plan_pack(const WeightView& view, const PackSettings& settings);

// Columns [32 * block, 32 * block + 32) of a row, in the codes of `format`, which plan_pack chose
// for this view without `quantize`. Requires: has_planes(view.format).
void unpack_planes(const WeightView& view, std::int64_t row, std::int64_t block, PanelFormat format,
                   UnpackedBlock* out);

// Quantizes 32 weights. k8F16: scale = max|x| / 127. k4F16Min: scale and minimum that bring the
// squared error down. Requires: one of these two.
void quantize_block(const float* values, PanelFormat format, UnpackedBlock* out);

}  // namespace kun
