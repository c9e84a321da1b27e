#include "nn/latent_attention.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "nn/heads.h"

namespace kun::nn {
namespace {

// By shape: fewer rows are not worth making keys and values for.
constexpr int kNaiveRowsMin = 8;
// What the intermediate results of one round may take; more rows, or heads, are done in rounds.
constexpr std::int64_t kRoundBytes = std::int64_t{64} << 20;

std::optional<RmsNorm> optional_norm(const Loader& load, const LatentAttentionShape& shape) {
  if (shape.query_rank == 0) return std::nullopt;
  return RmsNorm(load, shape.query_rank, shape.norm_epsilon);
}

std::optional<Linear> optional_query(const Loader& load, const LatentAttentionShape& shape) {
  if (shape.query_rank == 0) return std::nullopt;
  return Linear({{load, shape.heads * (shape.nope + shape.rope)}}, shape.query_rank);
}

std::optional<Indexer> optional_indexer(const Loader& load, const LatentAttentionShape& shape) {
  if (!shape.indexer) return std::nullopt;
  return Indexer(load, *shape.indexer, shape.hidden, shape.query_rank, shape.rope);
}

Linear::Part query_part(const Loader& load, const LatentAttentionShape& shape) {
  if (shape.query_rank > 0) return {load / "q_a_proj", shape.query_rank};
  return {load / "q_proj", shape.heads * (shape.nope + shape.rope)};
}

}  // namespace

LatentAttention::LatentAttention(const Loader& load, const LatentAttentionShape& shape, int layer)
    : ops_(&load.ops()),
      shape_(shape),
      layer_(static_cast<std::size_t>(layer)),
      down_({query_part(load, shape), {load / "kv_a_proj_with_mqa", shape.latent + shape.rope}},
            shape.hidden),
      query_norm_(optional_norm(load / "q_a_layernorm", shape)),
      query_up_(optional_query(load / "q_b_proj", shape)),
      latent_norm_(load / "kv_a_layernorm", shape.latent, shape.norm_epsilon),
      heads_(load, shape),
      indexer_(optional_indexer(load / "indexer", shape)),
      output_({{load / "o_proj", shape.hidden}}, shape.heads * shape.value) {}

std::vector<KvPlane> LatentAttention::planes(const LatentAttentionShape& shape, DType dtype) {
  std::vector<KvPlane> planes{
      {.name = "latent", .dtype = dtype, .width = static_cast<int>(shape.latent + shape.rope)}};
  if (shape.indexer) planes.push_back(Indexer::plane(*shape.indexer, dtype));
  return planes;
}

// What down_ makes queries of, or the queries.
std::int64_t LatentAttention::query_width() const {
  return shape_.query_rank > 0 ? shape_.query_rank : shape_.heads * (shape_.nope + shape_.rope);
}

// Returns all that down_ gives.
TensorView LatentAttention::store_entries(const GroupBatch& batch, const KvStorage& cache,
                                          ConstTensorView in, ConstTensorView cos_sin,
                                          RopeLayout layout, Scratch& scratch) const {
  const TensorView down = scratch.take({in.rows(), query_width() + shape_.latent + shape_.rope});
  down_(in, LinearOutput::kStore, down);
  const TensorView entry = down.slice_cols(query_width(), shape_.latent + shape_.rope);
  const TensorView latent = entry.slice_cols(0, shape_.latent);
  latent_norm_(latent, latent);
  ops_->rope(heads_of(entry, shape_.latent, 1, shape_.rope), cos_sin, layout);
  CachePlane entries = cache.planes[layer_][0];
  entries.role = CacheRole::kRows;
  ops_->store_cache(entry, batch.slots, entries);
  return down;
}

void LatentAttention::store(const GroupBatch& batch, const KvStorage& cache, ConstTensorView in,
                            ConstTensorView cos_sin, RopeLayout layout, Scratch& scratch) const {
  store_entries(batch, cache, in, cos_sin, layout, scratch);
  if (indexer_) indexer_->store(in, cos_sin, batch.slots, cache.planes[layer_][1], scratch);
}

void LatentAttention::operator()(const GroupBatch& batch, const KvStorage& cache,
                                 ConstTensorView in, ConstTensorView cos_sin, RopeLayout layout,
                                 TensorView residual, Scratch& scratch) const {
  const std::int64_t tokens = in.rows();
  const std::int64_t head_width = shape_.nope + shape_.rope;
  const TensorView down = store_entries(batch, cache, in, cos_sin, layout, scratch);
  Step step;
  step.cos_sin = cos_sin;
  step.entries = cache.planes[layer_][0];
  step.entries.role = CacheRole::kRows;
  TensorView query = down.slice_cols(0, query_width());
  if (query_up_) {
    (*query_norm_)(query, query);
    step.query_in = query;
    query = scratch.take({tokens, shape_.heads * head_width});
    (*query_up_)(step.query_in, LinearOutput::kStore, query);
  }
  step.query = heads_of(query, 0, shape_.heads, head_width);
  ops_->rope(step.query.slice_cols(shape_.nope, shape_.rope), cos_sin, layout);
  if (indexer_) {
    step.index_keys = cache.planes[layer_][1];
    step.weights = indexer_->store(in, cos_sin, batch.slots, step.index_keys, scratch);
  }
  const TensorView mixed = scratch.take({tokens, shape_.heads * shape_.value});
  step.mixed = heads_of(mixed, 0, shape_.heads, shape_.value);
  attend(step, batch.slices, scratch);
  output_(mixed, LinearOutput::kAccumulate, residual);
}

// Whether some row of the slice sees more than it may attend to.
bool LatentAttention::sparse(const AttentionSlice& slice) const {
  return indexer_ && slice.first_position + slice.row_count - shape_.first_entry > indexer_->top();
}

// By shape: products per head of the two forms; see the header.
bool LatentAttention::use_naive(const AttentionSlice& slice) const {
  if (shape_.form == LatentForm::kAbsorbed || sparse(slice)) return false;
  if (shape_.form == LatentForm::kNaive) return true;
  if (slice.row_count < kNaiveRowsMin) return false;
  const std::int64_t rows = slice.row_count;
  const std::int64_t context = slice.first_position + rows;
  const std::int64_t pairs = rows * slice.first_position + rows * (rows + 1) / 2;
  const std::int64_t projection = shape_.latent * (shape_.nope + shape_.value);
  const std::int64_t naive =
      context * projection + pairs * (shape_.nope + shape_.rope + shape_.value);
  const std::int64_t absorbed = rows * projection + pairs * (2 * shape_.latent + shape_.rope);
  return naive < absorbed;
}

void LatentAttention::attend(const Step& step, std::span<const AttentionSlice> slices,
                             Scratch& scratch) const {
  const std::int64_t row_bytes = shape_.heads * (2 * shape_.latent + shape_.rope) * 4;
  const auto rows_max =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(kRoundBytes / row_bytes, 1, 1 << 20));
  // Adjacent slices of the absorbed form go together, as far as they fit; long ones in pieces.
  const std::int64_t mark = scratch.mark();
  const auto list = scratch.take_list<AttentionSlice>(std::ssize(slices));
  std::size_t length = 0;  // a slice has at most one piece in a round
  std::int32_t rows = 0;
  const auto flush = [&] {
    if (length > 0) attend_absorbed(step, list.first(length), scratch);
    length = 0;
    rows = 0;
  };
  for (const AttentionSlice& slice : slices) {
    if (use_naive(slice)) {
      attend_naive(step, slice, scratch);
      continue;
    }
    for (std::int32_t first = 0; first < slice.row_count;) {
      const std::int32_t start = slice.first_row + first;
      const AttentionSlice* last = length > 0 ? &list[length - 1] : nullptr;
      const bool adjacent = last == nullptr || last->first_row + last->row_count == start;
      const bool dense_after_sparse = last != nullptr && sparse(*last) != sparse(slice);
      if (!adjacent || rows == rows_max || dense_after_sparse) flush();
      const std::int32_t count = std::min(slice.row_count - first, rows_max - rows);
      list[length++] = {start, count, slice.first_position + first, slice.blocks};
      rows += count;
      first += count;
    }
  }
  flush();
  scratch.rewind(mark);
}

// `slices` are adjacent rows.
void LatentAttention::attend_absorbed(const Step& step, std::span<const AttentionSlice> slices,
                                      Scratch& scratch) const {
  const std::int64_t mark = scratch.mark();
  const std::int32_t first = slices.front().first_row;
  const std::int64_t rows = slices.back().first_row + slices.back().row_count - first;
  const auto local = scratch.take_list<AttentionSlice>(std::ssize(slices));
  std::copy(slices.begin(), slices.end(), local.begin());
  for (AttentionSlice& slice : local) slice.first_row -= first;

  const TensorView query = step.query.slice_rows(first, rows);
  const TensorView wide = scratch.take({rows, shape_.heads, shape_.latent + shape_.rope});
  ops_->linear_groups(query.slice_cols(0, shape_.nope), heads_.queries(0, shape_.heads),
                      wide.slice_cols(0, shape_.latent));
  ops_->copy_heads(query.slice_cols(shape_.nope, shape_.rope),
                   wide.slice_cols(shape_.latent, shape_.rope));

  LatentSource source;
  source.plane = step.entries;
  source.slices = local;
  source.first = shape_.first_entry;
  const bool any_sparse = std::any_of(local.begin(), local.end(),
                                      [&](const AttentionSlice& slice) { return sparse(slice); });
  if (any_sparse) {
    source.chosen = indexer_->choose(
        step.query_in.slice_rows(first, rows), step.weights.slice_rows(first, rows),
        step.cos_sin.slice_rows(first, rows), local, step.index_keys, shape_.first_entry, scratch);
  }
  const TensorView latents = scratch.take({rows, shape_.heads, shape_.latent});
  ops_->latent_attention(
      {.query = wide, .sources = {&source, 1}, .scale = shape_.scale, .out = latents});
  ops_->linear_groups(latents, heads_.values(0, shape_.heads), step.mixed.slice_rows(first, rows));
  scratch.rewind(mark);
}

// Some heads at a time: makes their keys and values of the whole context, in a cache of its own.
void LatentAttention::attend_naive(const Step& step, const AttentionSlice& slice,
                                   Scratch& scratch) const {
  constexpr int kBlockLength = 256;
  constexpr std::int64_t kGroupLength = 16;
  const std::int64_t mark = scratch.mark();
  const std::int64_t context = slice.first_position + slice.row_count;
  const auto block_count = static_cast<std::int32_t>((context + kBlockLength - 1) / kBlockLength);
  const std::int64_t key_width = shape_.nope + shape_.rope;
  const std::int64_t token_bytes = 2 * (key_width + shape_.value) * 4;
  const std::int64_t heads_max =
      std::clamp<std::int64_t>(kRoundBytes / (context * token_bytes), 1, shape_.heads);

  const auto blocks = scratch.take_list<std::int32_t>(block_count);
  std::iota(blocks.begin(), blocks.end(), 0);
  const auto own_slots = scratch.take_list<std::int32_t>(context);
  std::iota(own_slots.begin(), own_slots.end(), 0);
  const auto slots = scratch.take_list<std::int32_t>(context);
  for (std::int32_t p = 0; p < context; ++p) {
    const std::int32_t length = step.entries.tokens_per_block;
    slots[static_cast<std::size_t>(p)] =
        slice.blocks[static_cast<std::size_t>(p / length)] * length + p % length;
  }
  const AttentionSlice own{slice.first_row, slice.row_count, slice.first_position, blocks};

  const TensorView latents = scratch.take({context, 1, shape_.latent});
  ops_->load_cache(step.entries, slots, 0, latents);
  const std::int64_t head_mark = scratch.mark();
  for (std::int64_t head = 0; head < shape_.heads; head += heads_max) {
    const std::int64_t count = std::min(heads_max, shape_.heads - head);
    const TensorView keys = scratch.take({context, count, key_width});
    const TensorView values = scratch.take({context, count, shape_.value});
    const ConstTensorView shared = repeat_head(latents, count);
    ops_->linear_groups(shared, heads_.keys(head, count), keys.slice_cols(0, shape_.nope));
    ops_->load_cache(step.entries, slots, shape_.latent, keys.slice_cols(shape_.nope, shape_.rope));
    ops_->linear_groups(shared, heads_.values(head, count), values);

    const auto plane = [&](CacheRole role, std::int64_t width) {
      CachePlane made;
      made.dtype = step.entries.dtype;
      made.role = role;
      made.width = static_cast<int>(count * width);
      made.head_width = static_cast<int>(width);
      made.tokens_per_block = kBlockLength;
      made.block_count = block_count;
      made.data = scratch.take({block_count * kBlockLength, made.width}).data;
      // Kernels read positions in groups, and scratch may hold anything.
      const std::int64_t last_group = context / kGroupLength * kGroupLength;
      const std::int64_t entry_bytes = made.width * size_bytes(made.dtype);
      std::memset(
          made.data + last_group * entry_bytes, 0,
          static_cast<std::size_t>((block_count * kBlockLength - last_group) * entry_bytes));
      return made;
    };
    const CachePlane key_plane = plane(CacheRole::kKeys, key_width);
    const CachePlane value_plane = plane(CacheRole::kValues, shape_.value);
    ops_->store_cache(flat_heads(keys), own_slots, key_plane);
    ops_->store_cache(flat_heads(values), own_slots, value_plane);
    ops_->attention({.query = slice_heads(step.query, head, count),
                     .keys = key_plane,
                     .values = value_plane,
                     .kv_heads = static_cast<int>(count),
                     .scale = shape_.scale,
                     .slices = {&own, 1},
                     .out = slice_heads(step.mixed, head, count)});
    scratch.rewind(head_mark);
  }
  scratch.rewind(mark);
}

}  // namespace kun::nn
