// Formulas: DeepSeek-V3's README_WEIGHTS and technical report, section 2.2. The hidden state is
// taken behind the final norm, which the report leaves open and other engines do as well.
#include "models/next_token_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace kun {
namespace {

// What the module's layer is called, though it is no layer of the decoder.
nn::Loader module_loader(const nn::Loader& load, const LatentDecoderShape& shape) {
  return load / "model" / "layers" / shape.layer_count;
}

// Single rows only attend absorbed, and nobody sees the first entry.
LatentDecoderShape module_shape(LatentDecoderShape shape) {
  shape.attention.form = nn::LatentForm::kAbsorbed;
  shape.attention.first_entry = 1;
  return shape;
}

// The decoder's groups and one of the module. Blocks also keep the hidden state of their last
// token: who goes on behind a block that somebody else computed needs it.
KvLayout with_module(KvLayout layout, const LatentDecoderShape& shape, DType dtype) {
  KvGroup group;
  group.layers = {shape.layer_count};
  group.planes = nn::LatentAttention::planes(shape.attention, dtype);
  group.planes.push_back({.name = "hidden_at_end",
                          .dtype = dtype,
                          .width = static_cast<int>(shape.attention.hidden),
                          .positions_per_entry = group.tokens_per_block,
                          .cumulative = false});
  layout.groups.push_back(std::move(group));
  return layout;
}

void copy_rows(ConstTensorView from, TensorView to) {
  CHECK(from.rows() == to.rows() && from.cols() == to.cols());
  for (std::int64_t i = 0; i < from.rows(); ++i) {
    std::copy_n(from.row<float>(i), from.cols(), to.row<float>(i));
  }
}

}  // namespace

Status check_next_token_module(const LatentDecoderShape& shape, const Checkpoint& checkpoint) {
  const std::string name = fmt::format("model.layers.{}.enorm.weight", shape.layer_count);
  if (checkpoint.has(name)) return {};
  return invalid_argument(fmt::format(
      "{} holds no next-token module (MTP): there is no tensor {}; choose another method "
      "of speculation",
      checkpoint.path().string(), name));
}

NextTokenDecoder::NextTokenDecoder(const LatentDecoderShape& shape, const nn::Loader& load,
                                   DType cache_dtype)
    : decoder_(shape, load, cache_dtype),
      layer_index_(static_cast<std::size_t>(shape.layer_count)),
      layout_(with_module(decoder_.kv_layout(), shape, cache_dtype)),
      ops_(load.ops()),
      rope_(shape.rope),
      embedding_(load.weights().table("model.embed_tokens.weight", shape.vocabulary,
                                      shape.attention.hidden)),
      embedding_norm_(module_loader(load, shape) / "enorm", shape.attention.hidden,
                      shape.attention.norm_epsilon),
      hidden_norm_(module_loader(load, shape) / "hnorm", shape.attention.hidden,
                   shape.attention.norm_epsilon),
      combine_({{module_loader(load, shape) / "eh_proj", shape.attention.hidden}},
               2 * shape.attention.hidden),
      layer_(module_loader(load, shape), module_shape(shape), shape.layer_count),
      head_norm_(module_loader(load, shape) / "shared_head" / "norm", shape.attention.hidden,
                 shape.attention.norm_epsilon),
      scratch_(load.ops()) {}

Status NextTokenDecoder::forward(const ForwardBatch& batch, const KvStorage& cache,
                                 TensorView out) const {
  scratch_.reset();
  const auto token_count = std::ssize(batch.tokens);
  const TensorView hidden = scratch_.take({token_count, hidden_size()});
  decoder_.forward_all(batch, cache, hidden);
  std::int64_t row = 0;
  for (const std::vector<std::int32_t>* rows : {&batch.wanted_rows, &batch.kept_rows}) {
    for (const std::int32_t from : *rows) {
      copy_rows(hidden.slice_rows(from, 1), out.slice_rows(row++, 1));
    }
  }
  if (!batch.entries_later) {
    const TensorView in = combine(batch.tokens, shift(batch, cache, hidden));
    layer_.store(batch.groups.back(), cache, angles(batch.positions), rope_.layout(), in, scratch_);
  }
  keep_block_ends(batch, cache, hidden);
  return {};
}

void NextTokenDecoder::make_guess_entries(const GuessBatch& batch, const KvStorage& cache) const {
  scratch_.reset();
  const TensorView in = combine(batch.tokens, batch.before);
  layer_.store(batch.group, cache, angles(batch.positions), rope_.layout(), in, scratch_);
}

Status NextTokenDecoder::guess(const GuessBatch& batch, const KvStorage& cache,
                               TensorView hidden) const {
  scratch_.reset();
  const TensorView residual = combine(batch.tokens, batch.before);
  layer_(batch.tokens, batch.group, cache, angles(batch.positions), rope_.layout(), residual,
         scratch_);
  head_norm_(residual, hidden);
  return {};
}

// The hidden state of the token before each.
TensorView NextTokenDecoder::shift(const ForwardBatch& batch, const KvStorage& cache,
                                   ConstTensorView hidden) const {
  const TensorView before = scratch_.take({hidden.rows(), hidden.cols()});
  const std::vector<AttentionSlice>& slices = batch.groups.back().slices;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const std::int64_t first = slices[s].first_row;
    const std::int64_t rest = slices[s].row_count - 1;
    const TensorView row = before.slice_rows(first, 1);
    if (!load_before(batch, cache, s, row)) std::fill_n(row.row<float>(0), row.cols(), 0.0F);
    copy_rows(hidden.slice_rows(first, rest), before.slice_rows(first + 1, rest));
  }
  return before;
}

// False where the state is not known: at the first token, and where a sequence goes on in the
// middle of a block after its state was forgotten. The entry is then of little use, and harms
// nobody.
bool NextTokenDecoder::load_before(const ForwardBatch& batch, const KvStorage& cache,
                                   std::size_t slice, TensorView row) const {
  const AttentionSlice& in = batch.groups.back().slices[slice];
  if (in.first_position == 0) return false;
  if (slice < batch.before_known.size() && batch.before_known[slice]) {
    copy_rows(batch.before.slice_rows(static_cast<std::int64_t>(slice), 1), row);
    return true;
  }
  const int length = layout_.groups.back().tokens_per_block;
  if (in.first_position % length != 0) return false;
  const std::int32_t block = in.blocks[static_cast<std::size_t>(in.first_position / length - 1)];
  const TensorView as_head(row.data, row.dtype, {1, 1, row.cols()});
  ops_.load_cache(ends_plane(cache), {&block, 1}, 0, as_head);
  return true;
}

void NextTokenDecoder::keep_block_ends(const ForwardBatch& batch, const KvStorage& cache,
                                       ConstTensorView hidden) const {
  const int length = layout_.groups.back().tokens_per_block;
  std::vector<std::int32_t> blocks;
  std::vector<std::int32_t> rows;
  for (const AttentionSlice& slice : batch.groups.back().slices) {
    for (std::int32_t r = 0; r < slice.row_count; ++r) {
      const std::int32_t position = slice.first_position + r;
      if ((position + 1) % length != 0) continue;
      blocks.push_back(slice.blocks[static_cast<std::size_t>(position / length)]);
      rows.push_back(slice.first_row + r);
    }
  }
  if (rows.empty()) return;
  const TensorView ends = scratch_.take({std::ssize(rows), hidden.cols()});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_rows(hidden.slice_rows(rows[i], 1), ends.slice_rows(static_cast<std::int64_t>(i), 1));
  }
  ops_.store_cache(ends, blocks, ends_plane(cache));
}

// eh_proj [enorm(embedding); hnorm(hidden state before)]
TensorView NextTokenDecoder::combine(std::span<const Token> tokens, ConstTensorView before) const {
  const auto count = std::ssize(tokens);
  const std::int64_t width = hidden_size();
  const TensorView out = scratch_.take({count, width});
  const std::int64_t mark = scratch_.mark();
  const TensorView both = scratch_.take({count, 2 * width});
  const TensorView embedded = scratch_.take({count, width});
  ops_.embed(tokens, embedding_, embedded);
  embedding_norm_(embedded, both.slice_cols(0, width));
  hidden_norm_(before, both.slice_cols(width, width));
  combine_(both, LinearOutput::kStore, out);
  scratch_.rewind(mark);
  return out;
}

TensorView NextTokenDecoder::angles(std::span<const std::int32_t> positions) const {
  const TensorView cos_sin = scratch_.take({std::ssize(positions), rope_.pair_count(), 2});
  rope_.fill(positions, cos_sin);
  return cos_sin;
}

// A block's one entry in it is called as the block.
CachePlane NextTokenDecoder::ends_plane(const KvStorage& cache) const {
  CachePlane plane = cache.planes[layer_index_].back();
  plane.role = CacheRole::kRows;
  return plane;
}

}  // namespace kun
