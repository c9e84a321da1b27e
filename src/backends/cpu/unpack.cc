#include "backends/cpu/unpack.h"

#include "base/check.h"

namespace kun {

std::optional<PanelFormat> grouped_panel_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16: return std::nullopt;
    case WeightFormat::kQ4_0: return PanelFormat::k4F16;
    case WeightFormat::kQ4_1: return PanelFormat::k4F16Min;
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ8_0:
    case WeightFormat::kIQ4_NL: return PanelFormat::k8F16;
    case WeightFormat::kQ5_1: return PanelFormat::k8F16Min;
    case WeightFormat::kQ2_K: return PanelFormat::k4Super16Min;
    case WeightFormat::kQ3_K: return PanelFormat::k4Super16;
    case WeightFormat::kQ4_K: return PanelFormat::k4SuperMin;
    case WeightFormat::kQ5_K: return PanelFormat::k6SuperMin;
    case WeightFormat::kQ6_K: return PanelFormat::k6Super16;
    case WeightFormat::kIQ4_XS: return PanelFormat::k8Super;
    case WeightFormat::kMXFP4: return PanelFormat::k8F32;
    case WeightFormat::kNVFP4: return PanelFormat::k8F32Group16;
    default: break;  // codes with planes: unpack_planes.h
  }
  return std::nullopt;
}

void unpack_block(WeightFormat format, const std::byte* row, std::int64_t block, float tensor_scale,
                  UnpackedBlock* out) {
  switch (format) {
    case WeightFormat::kF32:
    case WeightFormat::kF16:
    case WeightFormat::kBF16: CHECK(false); return;
    case WeightFormat::kQ4_0:
    case WeightFormat::kQ4_1:
    case WeightFormat::kQ5_0:
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ8_0: unpack_classic(format, row, block, out); return;
    case WeightFormat::kQ2_K:
    case WeightFormat::kQ3_K:
    case WeightFormat::kQ4_K:
    case WeightFormat::kQ5_K:
    case WeightFormat::kQ6_K: unpack_k_quant(format, row, block, out); return;
    case WeightFormat::kIQ4_NL:
    case WeightFormat::kIQ4_XS:
    case WeightFormat::kMXFP4:
    case WeightFormat::kNVFP4: unpack_codebook(format, row, block, tensor_scale, out); return;
    default: CHECK(false);
  }
}

}  // namespace kun
