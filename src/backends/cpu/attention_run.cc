#include "backends/cpu/attention_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends/cpu/cache_layout.h"
#include "base/check.h"

namespace kun {
namespace {

// More unfinished splits than this are not worth their memory traffic.
constexpr std::int64_t kPartialFloatsMax = std::int64_t{16} << 20;
constexpr int kItemsPerThread = 4;
// About two microseconds on one core.
constexpr std::int64_t kSmallProducts = 65536;

int even(int value) {
  return value + value % 2;
}

int padded(int dim, DType dtype) {
  return dtype == DType::kF32 ? dim : dtype == DType::kI8 ? (dim + 3) / 4 * 4 : even(dim);
}

// gather_group() for INT8: a piece of `head` elements, of which `dim` are the plane's.
void gather_int8_group(const CachePlane& plane, const AttentionSlice& slice, std::int64_t position,
                       int count, int kv_head, int dim, CacheArrangement target, std::byte* out) {
  const int head = target == CacheArrangement::kKeyGroups ? padded(dim, DType::kI8) : even(dim);
  std::memset(out, 0, static_cast<std::size_t>(int8_piece_bytes(head)));
  for (int lane = 0; lane < count; ++lane) {
    const std::int64_t p = position + lane;
    const auto index = static_cast<std::size_t>(p / plane.tokens_per_block);
    const std::byte* block = plane.data + slice.blocks[index] * plane.block_bytes();
    const Int8Place place(plane, p % plane.tokens_per_block);
    for (int c = 0; c < dim; ++c) {
      out[int8_piece_code(target, head, lane, c)] = block[place.code(kv_head, c)];
    }
    std::memcpy(out + int8_piece_scale(head, lane), block + place.scale(kv_head), sizeof(float));
  }
}

// Copies entries [0, count) of a group of positions of one head into the arrangement kernels read,
// from whatever arrangement the plane has.
void gather_group(const CachePlane& plane, const AttentionSlice& slice, std::int64_t position,
                  int count, int kv_head, int dim, CacheArrangement target, std::byte* out) {
  if (plane.dtype == DType::kI8) {
    return gather_int8_group(plane, slice, position, count, kv_head, dim, target, out);
  }
  const CacheArrangement source = arrangement(plane);
  const std::int64_t size = size_bytes(plane.dtype);
  for (int lane = 0; lane < count; ++lane) {
    const std::int64_t p = position + lane;
    const auto index = static_cast<std::size_t>(p / plane.tokens_per_block);
    const std::byte* block = plane.data + slice.blocks[index] * plane.block_bytes();
    for (int c = 0; c < dim; ++c) {
      const std::int64_t from = cache_element(source, plane.dtype, plane.width, head_width(plane),
                                              p % plane.tokens_per_block, kv_head * dim + c);
      const std::int64_t to = cache_element(target, plane.dtype, even(dim), even(dim), lane, c);
      std::memcpy(out + to * size, block + from * size, static_cast<std::size_t>(size));
    }
    if (dim % 2 != 0 && plane.dtype == DType::kBF16) {  // a pair's other half: no stale NaN
      const std::int64_t pad = cache_element(target, plane.dtype, even(dim), even(dim), lane, dim);
      std::memset(out + pad * size, 0, static_cast<std::size_t>(size));
    }
  }
}

void check_arguments(const AttentionArguments& a) {
  const auto is_f32 = [](ConstTensorView view) {
    return view.rank == 3 && view.dtype == DType::kF32;
  };
  CHECK(is_f32(a.query) && is_f32(a.out) && a.query.rows() == a.out.rows());
  CHECK(a.query.shape[1] == a.out.shape[1] && a.kv_heads > 0);
  CHECK(a.query.shape[1] % a.kv_heads == 0 && a.keys.dtype == a.values.dtype);
  CHECK(a.keys.dtype == DType::kF32 || a.keys.dtype == DType::kBF16 || a.keys.dtype == DType::kI8);
  CHECK(a.keys.width == a.kv_heads * a.query.cols());
  CHECK(a.values.width == a.kv_heads * a.out.cols());
  CHECK(a.keys.tokens_per_block == a.values.tokens_per_block);
  if (a.keys.dtype == DType::kI8) {  // whose scales belong to heads
    CHECK(head_width(a.keys) == a.query.cols() && head_width(a.values) == a.out.cols());
    CHECK(a.query.cols() <= kInt8HeadWidthMax && a.out.cols() <= kInt8HeadWidthMax);
  }
  for (const AttentionSlice& slice : a.slices) {
    CHECK(slice.row_count >= 0 && slice.first_row >= 0 && slice.first_position >= 0);
    CHECK(slice.first_row + slice.row_count <= a.query.rows());
    const std::int64_t end = std::int64_t{slice.first_position} + slice.row_count;
    CHECK(static_cast<std::int64_t>(slice.blocks.size()) * a.keys.tokens_per_block >= end);
  }
}

}  // namespace

// Everything one worker needs for one item, carved out of its scratch.
struct AttentionRun::Buffers {
  Buffers(Scratch& scratch, int dim, int value_dim) {
    const std::int64_t wide = dim + even(value_dim);
    float* next =
        scratch.get_array<float>(kQueriesMax * (wide + even(value_dim) + kSplitPositions + 5) +
                                 kSplitPositions * wide + 11 * 16);
    const auto take = [&next](std::int64_t count) {
      float* taken = next;
      next += (count + 15) / 16 * 16;
      return taken;
    };
    queries = take(kQueriesMax * dim);
    query_scales = take(kQueriesMax);
    scores = take(kQueriesMax * kSplitPositions);
    split_out = take(kQueriesMax * value_dim);
    split_max = take(kQueriesMax);
    split_sum = take(kQueriesMax);
    out = take(kQueriesMax * value_dim);
    max = take(kQueriesMax);
    sum = take(kQueriesMax);
    keys = reinterpret_cast<std::byte*>(take(kSplitPositions * dim));
    values = reinterpret_cast<std::byte*>(take(kSplitPositions * even(value_dim)));
  }

  void start(int query_count, int value_dim) const {
    std::fill_n(max, query_count, -INFINITY);
    std::fill_n(sum, query_count, 0.0F);
    std::fill_n(out, query_count * value_dim, 0.0F);
  }

  float* queries;
  float* query_scales;
  float* scores;
  float* split_out;
  float* split_max;
  float* split_sum;
  float* out;
  float* max;
  float* sum;
  std::byte* keys;  // a split's groups, when the cache cannot be read in place
  std::byte* values;
};

AttentionRun::AttentionRun(const CpuKernels& kernels, const AttentionArguments& arguments)
    : kernels_(kernels), arguments_(arguments) {
  check_arguments(arguments);
  group_ = static_cast<int>(arguments.query.shape[1]) / arguments.kv_heads;
  dim_ = static_cast<int>(arguments.query.cols());
  value_dim_ = static_cast<int>(arguments.out.cols());
  wide_ = arguments.keys.dtype == DType::kF32;
  coded_ = arguments.keys.dtype == DType::kI8;
  padded_dim_ = padded(dim_, arguments.keys.dtype);
  const bool groups = arguments.keys.tokens_per_block % kGroupPositions == 0;
  const int unit = coded_ ? 4 : 2;
  direct_keys_ = groups && dim_ % unit == 0 && arguments.keys.role == CacheRole::kKeys;
  direct_values_ = groups && value_dim_ % unit == 0 &&
                   arguments.values.role == CacheRole::kValues &&
                   (wide_ || head_width(arguments.values) == value_dim_);
}

bool AttentionRun::is_small() const {
  std::int64_t products = 0;
  for (const AttentionSlice& slice : arguments_.slices) {
    products += std::int64_t{slice.row_count} * (slice.first_position + slice.row_count);
  }
  return products * arguments_.query.shape[1] * (dim_ + value_dim_) < kSmallProducts;
}

void AttentionRun::plan(int thread_count, std::vector<AttentionItem>* items) {
  items->clear();
  for (std::size_t s = 0; s < arguments_.slices.size(); ++s) {
    add_items(static_cast<int>(s), items);
  }
  if (thread_count == 1) return;
  std::int64_t splits = 0;
  for (const AttentionItem& item : *items) splits += item.split_end;
  split_items(std::max<std::int64_t>(1, splits / (kItemsPerThread * thread_count)), items);
}

void AttentionRun::add_items(int slice_index, std::vector<AttentionItem>* items) const {
  const AttentionSlice& slice = arguments_.slices[static_cast<std::size_t>(slice_index)];
  const int heads_max = std::min(group_, kQueriesMax);
  const int rows_max = kQueriesMax / heads_max;
  for (int row = 0; row < slice.row_count; row += rows_max) {
    const int rows = std::min(rows_max, slice.row_count - row);
    const int splits = (slice.first_position + row + rows - 1) / kSplitPositions + 1;
    for (int kv_head = 0; kv_head < arguments_.kv_heads; ++kv_head) {
      for (int head = 0; head < group_; head += heads_max) {
        items->push_back({slice_index, row, rows, kv_head, head, std::min(heads_max, group_ - head),
                          0, splits, -1});
      }
    }
  }
}

// Replaces each item of more than `splits_max` splits by one item per split, unless that takes too
// much memory.
void AttentionRun::split_items(std::int64_t splits_max, std::vector<AttentionItem>* items) {
  std::int64_t floats = 0;
  for (const AttentionItem& item : *items) {
    if (item.split_end > splits_max) floats += item.split_end * partial_size(item);
  }
  if (floats == 0 || floats > kPartialFloatsMax) return;
  const std::size_t whole = items->size();
  for (std::size_t i = 0; i < whole; ++i) {
    if ((*items)[i].split_end <= splits_max) {
      items->push_back(AttentionItem((*items)[i]));
      continue;
    }
    for (int split = 0; split < (*items)[i].split_end; ++split) {
      AttentionItem part = (*items)[i];
      part.split_begin = split;
      part.split_end = split + 1;
      part.partial = partial_floats_;
      partial_floats_ += partial_size(part);
      items->push_back(part);
    }
  }
  items->erase(items->begin(), items->begin() + static_cast<std::ptrdiff_t>(whole));
}

void AttentionRun::load_query(const float* query, int index, const Buffers& buffers) const {
  if (coded_) {
    auto* codes = reinterpret_cast<std::int8_t*>(buffers.queries) + index * padded_dim_;
    buffers.query_scales[index] = kernels_.quantize_head(query, dim_, codes);
    std::fill(codes + dim_, codes + padded_dim_, std::int8_t{0});
    return;
  }
  if (!wide_ && kernels_.rounds_to_bf16) {
    auto* pairs = reinterpret_cast<std::uint32_t*>(buffers.queries) + index * padded_dim_ / 2;
    return kernels_.to_bf16_pairs(query, dim_, pairs, 1);
  }
  float* out = buffers.queries + index * padded_dim_;
  std::copy_n(query, dim_, out);
  if (padded_dim_ > dim_) out[dim_] = 0.0F;
}

void AttentionRun::load_queries(const AttentionItem& item, const Buffers& buffers) const {
  const AttentionSlice& slice = slice_of(item);
  for (int q = 0; q < item.query_count(); ++q) {
    const int head = item.kv_head * group_ + item.first_head + q % item.head_count;
    const std::int64_t row = slice.first_row + item.first_row + q / item.head_count;
    load_query(arguments_.query.row<float>(row) + head * arguments_.query.stride[1], q, buffers);
  }
}

// How many positions of a split each query sees; returns the largest.
int AttentionRun::count_positions(const AttentionItem& item, int split, int* counts) const {
  const int first = split * kSplitPositions;
  int longest = 0;
  for (int q = 0; q < item.query_count(); ++q) {
    const int length = slice_of(item).first_position + item.first_row + q / item.head_count + 1;
    counts[q] = std::clamp(length - first, 0, kSplitPositions);
    longest = std::max(longest, counts[q]);
  }
  return longest;
}

// Of 16 positions of a head as the kernels read them, for `dim` padded elements.
std::int64_t AttentionRun::piece_bytes(int dim) const {
  if (coded_) return int8_piece_bytes(dim);
  return std::int64_t{kGroupPositions} * dim * size_bytes(arguments_.keys.dtype);
}

// Where the group of positions that starts at `position` lies in a plane that is read in place.
const std::byte* AttentionRun::key_group(const AttentionItem& item, int position) const {
  const CachePlane& keys = arguments_.keys;
  const auto block = static_cast<std::size_t>(position / keys.tokens_per_block);
  const std::int64_t start = position % keys.tokens_per_block;
  return keys.data + slice_of(item).blocks[block] * keys.block_bytes() +
         start * keys.entry_bytes() + item.kv_head * piece_bytes(dim_);
}

const std::byte* AttentionRun::value_group(const AttentionItem& item, int position) const {
  const CachePlane& values = arguments_.values;
  const auto block = static_cast<std::size_t>(position / values.tokens_per_block);
  const std::int64_t start = position % values.tokens_per_block;
  const std::int64_t head_bytes =
      wide_ ? value_dim_ * size_bytes(values.dtype) : piece_bytes(value_dim_);
  return values.data + slice_of(item).blocks[block] * values.block_bytes() +
         start * values.entry_bytes() + item.kv_head * head_bytes;
}

// Lists the pieces of a split that will be read after the tile.
void AttentionRun::place_next(const AttentionItem& item, int split, AttentionTile* tile) const {
  int counts[kQueriesMax];
  tile->next_groups =
      (count_positions(item, split, counts) + kGroupPositions - 1) / kGroupPositions;
  for (int g = 0; g < tile->next_groups; ++g) {
    const int position = split * kSplitPositions + g * kGroupPositions;
    tile->next[g] = key_group(item, position);
    tile->next[tile->next_groups + g] = value_group(item, position);
  }
}

void AttentionRun::place_group(const AttentionItem& item, int position, int count, int group,
                               const Buffers& buffers, AttentionTile* tile) const {
  const AttentionSlice& slice = slice_of(item);
  if (direct_keys_) {
    tile->keys[group] = key_group(item, position);
  } else {
    std::byte* out = buffers.keys + group * piece_bytes(padded_dim_);
    gather_group(arguments_.keys, slice, position, count, item.kv_head, dim_,
                 CacheArrangement::kKeyGroups, out);
    tile->keys[group] = out;
  }
  if (direct_values_) {
    tile->values[group] = value_group(item, position);
  } else {
    std::byte* out = buffers.values + group * piece_bytes(even(value_dim_));
    gather_group(arguments_.values, slice, position, count, item.kv_head, value_dim_,
                 wide_ ? CacheArrangement::kPlain : CacheArrangement::kValuePairs, out);
    tile->values[group] = out;
  }
}

// Points the tile at the first `count` positions of a split.
void AttentionRun::place_split(const AttentionItem& item, int split, int count,
                               const Buffers& buffers, AttentionTile* tile) const {
  tile->value_stride = direct_values_ && wide_ ? arguments_.values.width : even(value_dim_);
  for (int first = 0; first < count; first += kGroupPositions) {
    place_group(item, split * kSplitPositions + first, std::min(kGroupPositions, count - first),
                first / kGroupPositions, buffers, tile);
  }
}

void AttentionRun::fold(const AttentionTile& split, const Buffers& buffers) const {
  for (int q = 0; q < split.query_count; ++q) {
    if (split.counts[q] == 0) continue;
    kernels_.attention_fold(buffers.max + q, buffers.sum + q, buffers.out + q * value_dim_,
                            split.max[q], split.sum[q], split.out + q * value_dim_, value_dim_);
  }
}

void AttentionRun::write(const AttentionItem& item, const Buffers& buffers) const {
  const AttentionSlice& slice = slice_of(item);
  for (int q = 0; q < item.query_count(); ++q) {
    const int head = item.kv_head * group_ + item.first_head + q % item.head_count;
    const std::int64_t row = slice.first_row + item.first_row + q / item.head_count;
    float* out = arguments_.out.row<float>(row) + head * arguments_.out.stride[1];
    const float inverse = 1.0F / buffers.sum[q];
    for (int i = 0; i < value_dim_; ++i) out[i] = buffers.out[q * value_dim_ + i] * inverse;
  }
}

// [query][value_dim] results, then [query] maxima, then [query] sums.
void AttentionRun::use_partial(const AttentionItem& item, AttentionTile* tile) const {
  tile->out = partials_ + item.partial;
  tile->max = tile->out + std::int64_t{item.query_count()} * value_dim_;
  tile->sum = tile->max + item.query_count();
}

void AttentionRun::run(const AttentionItem& item, const AttentionItem* next,
                       Scratch& scratch) const {
  const Buffers buffers(scratch, padded_dim_, value_dim_);
  const AttentionKernel kernel = wide_    ? kernels_.attention_f32
                                 : coded_ ? kernels_.attention_int8
                                          : kernels_.attention_bf16;
  int counts[kQueriesMax];
  AttentionTile tile{};
  tile.queries = buffers.queries;
  tile.query_scales = buffers.query_scales;
  tile.counts = counts;
  tile.query_count = item.query_count();
  tile.dim = padded_dim_;
  tile.value_dim = value_dim_;
  tile.scale = arguments_.scale;
  tile.scores = buffers.scores;
  tile.max = buffers.split_max;
  tile.sum = buffers.split_sum;
  tile.out = buffers.split_out;
  if (item.partial >= 0) use_partial(item, &tile);
  load_queries(item, buffers);
  buffers.start(tile.query_count, value_dim_);
  // Pieces of keys and values are equally long where they are prefetched at all.
  const bool prefetches = direct_keys_ && direct_values_ && !wide_ && dim_ == value_dim_;
  tile.next_bytes = static_cast<int>(piece_bytes(dim_));
  for (int split = item.split_begin; split < item.split_end; ++split) {
    tile.next_groups = 0;
    if (prefetches && split + 1 < item.split_end) {
      place_next(item, split + 1, &tile);
    } else if (prefetches && next != nullptr) {
      place_next(*next, next->split_begin, &tile);
    }
    place_split(item, split, count_positions(item, split, counts), buffers, &tile);
    kernel(tile);
    if (item.partial < 0) fold(tile, buffers);
  }
  if (item.partial < 0) write(item, buffers);
}

void AttentionRun::combine(std::span<const AttentionItem> items, Scratch& scratch) const {
  const Buffers buffers(scratch, padded_dim_, value_dim_);
  buffers.start(items.front().query_count(), value_dim_);
  std::size_t i = 0;
  do {
    int counts[kQueriesMax];
    AttentionTile split{};
    split.counts = counts;
    split.query_count = items[i].query_count();
    count_positions(items[i], items[i].split_begin, counts);
    use_partial(items[i], &split);
    fold(split, buffers);
    ++i;
  } while (i < items.size() && items[i].split_begin != 0);
  write(items.front(), buffers);
}

}  // namespace kun
