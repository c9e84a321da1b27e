// Compressed cache entries (DeepSeek V4): runs of positions pooled into one vector each, which is
// normalized and rotated as the first of its positions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_layout.h"
#include "nn/forward_batch.h"
#include "nn/linear.h"
#include "nn/rms_norm.h"
#include "nn/scratch.h"

namespace kun::nn {

struct CompressorShape {
  std::int64_t hidden = 0;
  std::int64_t width = 0;  // of an entry
  std::int64_t rope = 0;   // its last elements, which are rotated
  int ratio = 1;           // positions per entry
  float norm_epsilon = 1e-6F;

  // Runs of 4 are pooled together with the run before.
  bool overlap() const { return ratio == 4; }
};

// The entries that a step completes, the same for all layers of one ratio.
struct CompressedEntries {
  CompressedEntries() = default;
  // `block_positions`: tokens per block of the group. The lists live in `scratch`.
  CompressedEntries(const GroupBatch& batch, int ratio, int block_positions, Scratch& scratch);

  std::span<std::int32_t> positions;  // [entry]: the first of its run
  std::span<std::int32_t> slots;      // [entry]: in planes of the group with this ratio
};

class Compressor {
 public:
  Compressor(const Loader& load, const CompressorShape& shape);

  // The planes of entries and of state.
  static std::vector<KvPlane> planes(const CompressorShape& shape, std::string_view name,
                                     DType dtype, int block_positions);

  // Pools this step's tokens and writes the completed entries. cos_sin: of the entries' positions.
  void operator()(const GroupBatch& batch, int block_positions, ConstTensorView in,
                  const CompressedEntries& entries, ConstTensorView cos_sin, CachePlane plane,
                  CachePlane state, Scratch& scratch) const;

 private:
  std::int64_t row_width() const { return shape_.overlap() ? 2 * shape_.width : shape_.width; }

  Ops* ops_;
  CompressorShape shape_;
  Linear value_and_gate_;
  DeviceVector bias_;  // [ratio, row_width]
  RmsNorm norm_;
};

}  // namespace kun::nn
