#include "nn/compressed_attention.h"

#include <array>
#include <cmath>

#include "nn/float_weights.h"
#include "nn/heads.h"

namespace kun::nn {
namespace {

// Planes of a layer: the window's entry, then those of its ratio.
constexpr std::size_t kWindow = 0;
constexpr std::size_t kEntries = 1;
constexpr std::size_t kState = 2;
constexpr std::size_t kIndexKeys = 3;
constexpr std::size_t kIndexState = 4;

// Layers of this ratio have so many entries that an indexer picks among them.
constexpr int kIndexedRatio = 4;

bool has_indexer(const CompressedGroup& group) {
  return group.ratio == kIndexedRatio;
}

}  // namespace

CompressorShape CompressedAttentionShape::compressor(int ratio) const {
  return {.hidden = hidden,
          .width = head_width,
          .rope = rope,
          .ratio = ratio,
          .norm_epsilon = norm_epsilon};
}

CompressorShape CompressedAttentionShape::index_compressor() const {
  CompressorShape shape = compressor(kIndexedRatio);
  shape.width = indexer.head_width;
  return shape;
}

CompressedAttention::CompressedAttention(const Loader& load, const CompressedAttentionShape& shape,
                                         const CompressedGroup& group, int layer)
    : ops_(&load.ops()),
      shape_(shape),
      group_(group),
      layer_(static_cast<std::size_t>(layer)),
      down_({{load / "wq_a", shape.query_rank}, {load / "wkv", shape.head_width}}, shape.hidden),
      query_norm_(load / "q_norm", shape.query_rank, shape.norm_epsilon),
      query_up_({{load / "wq_b", shape.heads * shape.head_width}}, shape.query_rank),
      entry_norm_(load / "kv_norm", shape.head_width, shape.norm_epsilon),
      sinks_(load.weights().vector(load.name("attn_sink"), shape.heads)),
      ones_(device_vector(*ops_,
                          std::vector<float>(static_cast<std::size_t>(shape.head_width), 1.0F))),
      output_({{load / "wo_b", shape.hidden}}, shape.output_groups * shape.output_rank) {
  if (group.ratio != 0) compressor_.emplace(load / "compressor", shape.compressor(group.ratio));
  if (has_indexer(group)) load_index(load / "indexer", shape);
  load_output(load);
}

void CompressedAttention::load_index(const Loader& load, const CompressedAttentionShape& shape) {
  const IndexerShape& indexer = shape.indexer;
  index_compressor_.emplace(load / "compressor", shape.index_compressor());
  index_query_.emplace(
      Linear({{load / "wq_b", indexer.heads * indexer.head_width}}, shape.query_rank));
  index_weights_.emplace(Linear({{load / "weights_proj", indexer.heads}}, shape.hidden));
}

// wo_a holds one matrix per group of heads, one below the other.
void CompressedAttention::load_output(const Loader& load) {
  output_matrices_ =
      pack_slices(load, (load / "wo_a").weight(), shape_.output_groups, shape_.output_rank,
                  shape_.heads / shape_.output_groups * shape_.head_width);
  for (const auto& matrix : output_matrices_) output_groups_.push_back(matrix.get());
}

std::vector<KvPlane> CompressedAttention::window_planes(const CompressedAttentionShape& shape,
                                                        DType dtype) {
  return {{.name = "window", .dtype = dtype, .width = static_cast<int>(shape.head_width)}};
}

std::vector<KvPlane> CompressedAttention::planes(const CompressedAttentionShape& shape,
                                                 const CompressedGroup& group, DType dtype) {
  std::vector<KvPlane> planes =
      Compressor::planes(shape.compressor(group.ratio), "compressed", dtype, group.block_positions);
  if (!has_indexer(group)) return planes;
  for (KvPlane& plane :
       Compressor::planes(shape.index_compressor(), "index_key", dtype, group.block_positions)) {
    planes.push_back(std::move(plane));
  }
  return planes;
}

void CompressedAttention::operator()(const ForwardBatch& batch, const KvStorage& cache,
                                     ConstTensorView in, const CompressedAngles& angles,
                                     TensorView out, Scratch& scratch) const {
  const std::int64_t mark = scratch.mark();
  const std::vector<CachePlane>& planes = cache.planes[layer_];
  const std::int64_t nope = shape_.head_width - shape_.rope;
  const TensorView down = scratch.take({in.rows(), shape_.query_rank + shape_.head_width});
  down_(in, LinearOutput::kStore, down);
  const TensorView query_in = down.slice_cols(0, shape_.query_rank);
  query_norm_(query_in, query_in);
  const TensorView queries = scratch.take({in.rows(), shape_.heads * shape_.head_width});
  query_up_(query_in, LinearOutput::kStore, queries);
  const TensorView query = heads_of(queries, 0, shape_.heads, shape_.head_width);
  ops_->rms_norm(query, ones_.view, shape_.norm_epsilon, query);
  ops_->rope(query.slice_cols(nope, shape_.rope), angles.tokens, RopeLayout::kInterleaved);

  const TensorView entry = down.slice_cols(shape_.query_rank, shape_.head_width);
  entry_norm_(entry, entry);
  ops_->rope(heads_of(entry, nope, 1, shape_.rope), angles.tokens, RopeLayout::kInterleaved);
  CachePlane window = planes[kWindow];
  window.role = CacheRole::kRows;
  ops_->store_cache(entry, batch.groups.front().slots, window);

  const TensorView mixed = scratch.take({in.rows(), shape_.heads * shape_.head_width});
  const TensorView mixed_heads = heads_of(mixed, 0, shape_.heads, shape_.head_width);
  attend(batch, planes, in, query_in, query, angles, mixed_heads, scratch);
  ops_->rope(mixed_heads.slice_cols(nope, shape_.rope), angles.back, RopeLayout::kInterleaved);

  const TensorView low = scratch.take({in.rows(), shape_.output_groups * shape_.output_rank});
  ops_->linear_groups(split_heads(mixed, shape_.output_groups), output_groups_,
                      heads_of(low, 0, shape_.output_groups, shape_.output_rank));
  output_(low, LinearOutput::kStore, out);
  scratch.rewind(mark);
}

void CompressedAttention::attend(const ForwardBatch& batch, const std::vector<CachePlane>& planes,
                                 ConstTensorView in, ConstTensorView query_in, TensorView query,
                                 const CompressedAngles& angles, TensorView mixed,
                                 Scratch& scratch) const {
  std::array<LatentSource, 2> sources;
  sources[0].plane = planes[kWindow];
  sources[0].plane.role = CacheRole::kRows;
  sources[0].slices = batch.groups.front().slices;
  sources[0].window = shape_.window;
  if (compressor_) {
    const GroupBatch& group = batch.groups[static_cast<std::size_t>(group_.group)];
    LatentSource& entries = sources[1];
    entries.plane = planes[kEntries];
    entries.plane.role = CacheRole::kRows;
    entries.slices = group.slices;
    entries.stride = group_.ratio;
    (*compressor_)(group, group_.block_positions, in, *angles.completed, angles.entries,
                   entries.plane, planes[kState], scratch);
    if (index_compressor_) {
      entries.chosen = choose(batch, planes, in, query_in, angles, scratch);
    }
  }
  ops_->latent_attention({.query = query,
                          .sources = std::span(sources).first(compressor_ ? 2 : 1),
                          .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_width)),
                          .sinks = sinks_.view,
                          .out = mixed});
}

// Writes the indexer's keys, and picks entries unless every row may have all it sees.
ConstTensorView CompressedAttention::choose(const ForwardBatch& batch,
                                            const std::vector<CachePlane>& planes,
                                            ConstTensorView in, ConstTensorView query_in,
                                            const CompressedAngles& angles,
                                            Scratch& scratch) const {
  const GroupBatch& group = batch.groups[static_cast<std::size_t>(group_.group)];
  const IndexerShape& indexer = shape_.indexer;
  CachePlane keys = planes[kIndexKeys];
  keys.role = CacheRole::kIndexKeys;
  (*index_compressor_)(group, group_.block_positions, in, *angles.completed, angles.entries, keys,
                       planes[kIndexState], scratch);
  bool all_fit = true;
  for (const AttentionSlice& slice : group.slices) {
    all_fit = all_fit && (slice.first_position + slice.row_count) / group_.ratio <= indexer.top;
  }
  if (all_fit) return {};
  const TensorView queries = scratch.take({in.rows(), indexer.heads * indexer.head_width});
  const TensorView weights = scratch.take({in.rows(), indexer.heads});
  const TensorView chosen = as_integers(scratch.take({in.rows(), indexer.top}));
  (*index_query_)(query_in, LinearOutput::kStore, queries);
  (*index_weights_)(in, LinearOutput::kStore, weights);
  const TensorView heads = heads_of(queries, 0, indexer.heads, indexer.head_width);
  ops_->rope(heads.slice_cols(indexer.head_width - shape_.rope, shape_.rope), angles.tokens,
             RopeLayout::kInterleaved);
  ops_->choose_entries({.query = heads,
                        .weights = weights,
                        .keys = keys,
                        .slices = group.slices,
                        .stride = group_.ratio,
                        .chosen = chosen});
  return chosen;
}

}  // namespace kun::nn
