#include "nn/compressor.h"

#include "nn/float_weights.h"
#include "nn/heads.h"

namespace kun::nn {

CompressedEntries::CompressedEntries(const GroupBatch& batch, int ratio, int block_positions,
                                     Scratch& scratch) {
  const std::int32_t per_block = block_positions / ratio;
  std::int64_t count = 0;
  for (const AttentionSlice& slice : batch.slices) {
    count += (slice.first_position + slice.row_count) / ratio - slice.first_position / ratio;
  }
  positions = scratch.take_list<std::int32_t>(count);
  slots = scratch.take_list<std::int32_t>(count);
  std::size_t next = 0;
  for (const AttentionSlice& slice : batch.slices) {
    const std::int32_t end = (slice.first_position + slice.row_count) / ratio;
    for (std::int32_t entry = slice.first_position / ratio; entry < end; ++entry) {
      positions[next] = entry * ratio;
      const std::int32_t block = slice.blocks[static_cast<std::size_t>(entry / per_block)];
      slots[next++] = block * per_block + entry % per_block;
    }
  }
}

Compressor::Compressor(const Loader& load, const CompressorShape& shape)
    : ops_(&load.ops()),
      shape_(shape),
      value_and_gate_({{load / "wkv", row_width()}, {load / "wgate", row_width()}}, shape.hidden),
      norm_(load / "norm", shape.width, shape.norm_epsilon) {
  const WeightView bias = load.weights().view(load.name("ape"), shape.ratio, row_width());
  if (load.weights().status().ok()) bias_ = device_vector(*ops_, floats_of(bias));
}

std::vector<KvPlane> Compressor::planes(const CompressorShape& shape, std::string_view name,
                                        DType dtype, int block_positions) {
  const std::int64_t state = compress_state_width(shape.width, shape.overlap());
  return {{.name = std::string(name),
           .dtype = dtype,
           .width = static_cast<int>(shape.width),
           .positions_per_entry = shape.ratio},
          {.name = std::string(name) + "_state",
           .dtype = DType::kF32,
           .width = static_cast<int>(state),
           .positions_per_entry = block_positions}};
}

void Compressor::operator()(const GroupBatch& batch, int block_positions, ConstTensorView in,
                            const CompressedEntries& entries, ConstTensorView cos_sin,
                            CachePlane plane, CachePlane state, Scratch& scratch) const {
  const std::int64_t mark = scratch.mark();
  const TensorView both = scratch.take({in.rows(), 2 * row_width()});
  const TensorView made = scratch.take({std::ssize(entries.positions), shape_.width});
  value_and_gate_(in, LinearOutput::kStore, both);
  state.role = CacheRole::kRows;
  ops_->compress(
      {.value = both.slice_cols(0, row_width()),
       .gate = both.slice_cols(row_width(), row_width()),
       .bias = ConstTensorView(bias_.bytes.get(), DType::kF32, {shape_.ratio, row_width()}),
       .ratio = shape_.ratio,
       .overlap = shape_.overlap(),
       .block_positions = block_positions,
       .state = state,
       .slices = batch.slices,
       .out = made});
  if (!entries.positions.empty()) {
    norm_(made, made);
    ops_->rope(heads_of(made, shape_.width - shape_.rope, 1, shape_.rope), cos_sin,
               RopeLayout::kInterleaved);
    ops_->store_cache(made, entries.slots, plane);
  }
  scratch.rewind(mark);
}

}  // namespace kun::nn
