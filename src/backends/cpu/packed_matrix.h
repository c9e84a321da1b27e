// Weights as the kernels read them: panels of 32 rows, columns in order, scales beside their codes
// (kernels.h). One allocation holds all segments of a matrix; a segment is one view it was made of.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/pack_plan.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "base/status.h"
#include "device/device.h"
#include "device/ops.h"

namespace kun {

struct PackedSegment {
  PanelFormat format = PanelFormat::kF32;
  std::int64_t first_row = 0;
  std::int64_t row_count = 0;
  std::int64_t panel_bytes = 0;
  std::int64_t offset = 0;  // of the first panel in the matrix's data

  std::int64_t panel_count() const { return (row_count + kPanelRows - 1) / kPanelRows; }
};

// One panel of a matrix.
struct PanelPlace {
  const PackedSegment* segment;
  std::int64_t index;  // within the segment
  std::int64_t row;    // first output row
};

class CpuPackedMatrix final : public PackedMatrix {
 public:
  std::vector<PackedSegment> segments;
  std::shared_ptr<std::byte> data;

  std::int64_t panel_count() const {
    std::int64_t count = 0;
    for (const PackedSegment& segment : segments) count += segment.panel_count();
    return count;
  }

  // The index-th panel, counted over all segments.
  PanelPlace locate(std::int64_t index) const {
    const PackedSegment* segment = segments.data();
    while (index >= segment->panel_count()) index -= segment++->panel_count();
    return {segment, index, segment->first_row + index * kPanelRows};
  }

  const std::byte* panel(const PackedSegment& segment, std::int64_t index) const {
    return data.get() + segment.offset + index * segment.panel_bytes;
  }
};

// Bytes of one panel of `cols` columns, a multiple of 64. Requires: what check_views checks.
std::int64_t panel_bytes(PanelFormat format, std::int64_t cols);

// Packs in parallel on `pool` into memory of `slabs`; plan_pack says what each view becomes.
Result<std::unique_ptr<PackedMatrix>> pack_matrix(std::span<const WeightView> views,
                                                  const PackSettings& settings, ThreadPool& pool,
                                                  Slabs& slabs);
inline Result<std::unique_ptr<PackedMatrix>> pack_matrix(std::span<const WeightView> views,
                                                         ComputeType compute, ThreadPool& pool,
                                                         Slabs& slabs) {
  return pack_matrix(views, PackSettings{compute}, pool, slabs);
}

}  // namespace kun
