#include "backends/cpu/latent_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace kun {
namespace {

// Rows that share their entries are taken together up to this many queries.
constexpr int kQueriesPerItem = 64;
constexpr int kItemsPerThread = 2;
// More unfinished runs than this are not worth their memory traffic.
constexpr std::int64_t kPartialFloatsMax = std::int64_t{16} << 20;

int even(int value) {
  return value + value % 2;
}

void copy_values(const std::byte* const* rows, int width, std::int64_t stride, std::byte* out) {
  for (int p = 0; p < kGroupPositions; ++p) {
    std::memcpy(out + p * stride * 4, rows[p], static_cast<std::size_t>(width) * 4);
  }
}

void check_arguments(const LatentAttentionArguments& a) {
  CHECK(a.query.rank == 3 && a.query.dtype == DType::kF32 && a.query.cols() % 2 == 0);
  CHECK(a.out.rank == 3 && a.out.dtype == DType::kF32 && a.out.rows() == a.query.rows());
  CHECK(a.out.shape[1] == a.query.shape[1] && a.out.cols() <= a.query.cols());
  CHECK(!a.sources.empty());
  CHECK(a.sinks.data == nullptr || a.sinks.cols() == a.query.shape[1]);
  const DType dtype = a.sources.front().plane.dtype;
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  for (const LatentSource& source : a.sources) {
    CHECK(source.plane.role == CacheRole::kRows && source.plane.dtype == dtype);
    CHECK(source.plane.width >= a.query.cols() && source.stride > 0 && source.window >= 0);
    CHECK(source.first >= 0);
    CHECK(source.slices.size() == a.sources.front().slices.size());
    CHECK(source.chosen.data == nullptr || source.chosen.rows() == a.query.rows());
    for (const AttentionSlice& slice : source.slices) {
      CHECK(slice.first_row >= 0 && slice.first_row + slice.row_count <= a.query.rows());
      const std::int64_t seen = (slice.first_position + slice.row_count) / source.stride;
      CHECK(static_cast<std::int64_t>(slice.blocks.size()) * source.plane.tokens_per_block >= seen);
    }
  }
}

}  // namespace

// Everything one worker needs for one item, carved out of its scratch.
struct LatentRun::Buffers {
  Buffers(Scratch& scratch, int query_count, int dim, int value_dim) {
    const std::int64_t queries_max = query_count;
    const std::int64_t wide_values = even(value_dim);
    const std::int64_t floats = queries_max * (dim + value_dim + 2) +
                                kQueriesMax * (kSplitPositions + value_dim + 2) +
                                kSplitPositions * (dim + wide_values) + dim + 11 * 16;
    float* next = scratch.get_array<float>(floats);
    const auto take = [&next](std::int64_t count) {
      float* taken = next;
      next += (count + 15) / 16 * 16;
      return taken;
    };
    queries = take(queries_max * dim);
    out = take(queries_max * value_dim);
    max = take(queries_max);
    sum = take(queries_max);
    scores = take(kQueriesMax * kSplitPositions);
    run_out = take(kQueriesMax * value_dim);
    run_max = take(kQueriesMax);
    run_sum = take(kQueriesMax);
    keys = reinterpret_cast<std::byte*>(take(kSplitPositions * dim));
    values = reinterpret_cast<std::byte*>(take(kSplitPositions * wide_values));
    nothing = reinterpret_cast<std::byte*>(take(dim));
    std::memset(nothing, 0, static_cast<std::size_t>(dim) * 4);
  }

  float* queries;
  float* out;
  float* max;
  float* sum;
  float* scores;
  float* run_out;
  float* run_max;
  float* run_sum;
  std::byte* keys;
  std::byte* values;
  std::byte* nothing;  // an entry of zeros, beside the last of a run
};

LatentRun::LatentRun(const CpuKernels& kernels, const LatentAttentionArguments& arguments)
    : kernels_(kernels), arguments_(arguments) {
  check_arguments(arguments);
  heads_ = static_cast<int>(arguments.query.shape[1]);
  dim_ = static_cast<int>(arguments.query.cols());
  value_dim_ = static_cast<int>(arguments.out.cols());
  wide_ = arguments.sources.front().plane.dtype == DType::kF32;
}

// How many entries of a source a row sees.
int LatentRun::visible_count(const LatentSource& source, const LatentItem& item, int row) const {
  const AttentionSlice& rows = slice(item);
  const std::int32_t in_slice = item.first_row + row;
  if (source.chosen.data != nullptr) {
    const auto* chosen = source.chosen.row<std::int32_t>(rows.first_row + in_slice);
    const auto* end = std::find(chosen, chosen + source.chosen.cols(), -1);
    return static_cast<int>(end - chosen);
  }
  const int end = (rows.first_position + in_slice + 1) / source.stride;
  const int count = std::max(0, end - source.first);
  return source.window == 0 ? count : std::min(count, source.window);
}

int LatentRun::run_count(const LatentItem& item) const {
  int count = 0;
  for (const LatentSource& source : arguments_.sources) {
    count +=
        (visible_count(source, item, item.row_count - 1) + kSplitPositions - 1) / kSplitPositions;
  }
  return count;
}

LatentRun::Run LatentRun::find_run(const LatentItem& item, int index) const {
  for (const LatentSource& source : arguments_.sources) {
    const int visible = visible_count(source, item, item.row_count - 1);
    const int runs = (visible + kSplitPositions - 1) / kSplitPositions;
    if (index < runs) {
      const int first = index * kSplitPositions;
      return {&source, first, std::min(kSplitPositions, visible - first)};
    }
    index -= runs;
  }
  CHECK(false);  // an item of runs that its rows do not have
  return {};
}

// The index-th entry of a run.
int LatentRun::entry(const Run& run, const LatentItem& item, int index) const {
  const LatentSource& source = *run.source;
  const AttentionSlice& rows = slice(item);
  if (source.chosen.data != nullptr) {
    return source.chosen.row<std::int32_t>(rows.first_row + item.first_row)[run.first + index];
  }
  if (source.window == 0) return source.first + run.first + index;
  const int end = (rows.first_position + item.first_row + 1) / source.stride;
  return std::max(source.first, end - source.window) + run.first + index;
}

void LatentRun::plan(int thread_count, std::vector<LatentItem>* items) {
  items->clear();
  partial_floats_ = 0;
  bool shared = true;  // whether the rows of a slice see the same entries, but for how many
  for (const LatentSource& source : arguments_.sources) {
    shared = shared && source.chosen.data == nullptr && source.window == 0;
  }
  const int rows_max = shared ? std::max(1, kQueriesPerItem / heads_) : 1;
  const auto slices = arguments_.sources.front().slices;
  std::int64_t floats = 0;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    for (int row = 0; row < slices[s].row_count; row += rows_max) {
      LatentItem item{static_cast<std::int32_t>(s),
                      row,
                      std::min(rows_max, slices[s].row_count - row),
                      0,
                      0,
                      -1};
      item.run_end = run_count(item);
      floats += item.run_end * partial_size(item);
      items->push_back(item);
    }
  }
  const bool enough = std::ssize(*items) >= kItemsPerThread * thread_count;
  if (enough || thread_count == 1 || floats > kPartialFloatsMax) return;
  // Behind the whole ones, which then go: another list would be allocated at every call.
  const std::size_t whole = items->size();
  for (std::size_t i = 0; i < whole; ++i) {
    for (int run = 0; run < (*items)[i].run_end; ++run) {
      LatentItem part = (*items)[i];
      part.run_begin = run;
      part.run_end = run + 1;
      part.partial = partial_floats_;
      partial_floats_ += partial_size(part);
      items->push_back(part);
    }
  }
  items->erase(items->begin(), items->begin() + static_cast<std::ptrdiff_t>(whole));
}

void LatentRun::load_queries(const LatentItem& item, const Buffers& buffers) const {
  for (int q = 0; q < query_count(item); ++q) {
    const std::int64_t row = slice(item).first_row + item.first_row + q / heads_;
    const float* query = arguments_.query.row<float>(row) + q % heads_ * arguments_.query.stride[1];
    if (!wide_ && kernels_.rounds_to_bf16) {
      auto* pairs = reinterpret_cast<std::uint32_t*>(buffers.queries) + q * dim_ / 2;
      kernels_.to_bf16_pairs(query, dim_, pairs, 1);
    } else {
      std::copy_n(query, dim_, buffers.queries + q * dim_);
    }
  }
}

void LatentRun::gather(const Run& run, const LatentItem& item, const Buffers& buffers) const {
  const CachePlane& plane = run.source->plane;
  const std::int64_t size = size_bytes(plane.dtype);
  const auto blocks = run.source->slices[static_cast<std::size_t>(item.slice)].blocks;
  for (int first = 0; first < run.count; first += kGroupPositions) {
    const std::byte* rows[kGroupPositions];
    for (int lane = 0; lane < kGroupPositions; ++lane) {
      rows[lane] = buffers.nothing;
      if (first + lane >= run.count) continue;
      const int index = entry(run, item, first + lane);
      const auto block = static_cast<std::size_t>(index / plane.tokens_per_block);
      rows[lane] = plane.data + blocks[block] * plane.block_bytes() +
                   index % plane.tokens_per_block * plane.width * size;
    }
    std::byte* keys = buffers.keys + std::int64_t{first} * dim_ * size;
    std::byte* values = buffers.values + std::int64_t{first} * even(value_dim_) * size;
    kernels_.gather_keys(rows, static_cast<int>(dim_ * size / 4), keys);
    if (wide_) {
      copy_values(rows, value_dim_, even(value_dim_), values);
    } else {
      kernels_.gather_values(rows, value_dim_, even(value_dim_), values);
    }
  }
}

// How many entries of a run the queries from `first` on see.
void LatentRun::count_visible(const Run& run, const LatentItem& item, int first, int queries,
                              int* counts) const {
  int row = -1;
  int count = 0;
  for (int q = 0; q < queries; ++q) {
    if ((first + q) / heads_ != row) {
      row = (first + q) / heads_;
      count = std::clamp(visible_count(*run.source, item, row) - run.first, 0, kSplitPositions);
    }
    counts[q] = count;
  }
}

// All queries of the item against the gathered run.
void LatentRun::attend(const Run& run, const LatentItem& item, const Buffers& buffers) const {
  const std::int64_t size = wide_ ? 4 : 2;
  const std::int64_t query_bytes =
      !wide_ && kernels_.rounds_to_bf16 ? std::int64_t{dim_} * 2 : std::int64_t{dim_} * 4;
  const std::int64_t queries = query_count(item);
  int counts[kQueriesMax];
  AttentionTile tile{};
  tile.counts = counts;
  tile.dim = dim_;
  tile.value_dim = value_dim_;
  tile.scale = arguments_.scale;
  tile.value_stride = even(value_dim_);
  tile.scores = buffers.scores;
  for (int g = 0; g * kGroupPositions < run.count; ++g) {
    const std::int64_t first = std::int64_t{g} * kGroupPositions;
    tile.keys[g] = buffers.keys + first * dim_ * size;
    tile.values[g] = buffers.values + first * even(value_dim_) * size;
  }
  for (std::int64_t first = 0; first < queries; first += kQueriesMax) {
    tile.query_count = static_cast<int>(std::min<std::int64_t>(kQueriesMax, queries - first));
    tile.queries = reinterpret_cast<const std::byte*>(buffers.queries) + first * query_bytes;
    count_visible(run, item, static_cast<int>(first), tile.query_count, counts);
    tile.out = buffers.run_out;
    tile.max = buffers.run_max;
    tile.sum = buffers.run_sum;
    if (item.partial >= 0) {
      tile.out = partials_ + item.partial + first * value_dim_;
      tile.max = partials_ + item.partial + queries * value_dim_ + first;
      tile.sum = tile.max + queries;
    }
    (wide_ ? kernels_.attention_f32 : kernels_.attention_bf16)(tile);
    if (item.partial >= 0) continue;
    for (int q = 0; q < tile.query_count; ++q) {
      if (counts[q] == 0) continue;
      kernels_.attention_fold(buffers.max + first + q, buffers.sum + first + q,
                              buffers.out + (first + q) * value_dim_, tile.max[q], tile.sum[q],
                              tile.out + q * value_dim_, value_dim_);
    }
  }
}

// A sink is an entry whose value is zero.
void LatentRun::start(const LatentItem& item, const Buffers& buffers) const {
  const bool sinks = arguments_.sinks.data != nullptr;
  for (int q = 0; q < query_count(item); ++q) {
    buffers.max[q] = sinks ? arguments_.sinks.row<float>(0)[q % heads_] : -INFINITY;
    buffers.sum[q] = sinks ? 1.0F : 0.0F;
  }
  std::fill_n(buffers.out, std::int64_t{query_count(item)} * value_dim_, 0.0F);
}

void LatentRun::write(const LatentItem& item, const Buffers& buffers) const {
  for (int q = 0; q < query_count(item); ++q) {
    const std::int64_t row = slice(item).first_row + item.first_row + q / heads_;
    float* out = arguments_.out.row<float>(row) + q % heads_ * arguments_.out.stride[1];
    const float inverse = 1.0F / buffers.sum[q];
    const float* in = buffers.out + std::int64_t{q} * value_dim_;
    for (int i = 0; i < value_dim_; ++i) out[i] = in[i] * inverse;
  }
}

void LatentRun::run(const LatentItem& item, Scratch& scratch) const {
  const Buffers buffers(scratch, query_count(item), dim_, value_dim_);
  load_queries(item, buffers);
  start(item, buffers);
  for (int index = item.run_begin; index < item.run_end; ++index) {
    const Run run = find_run(item, index);
    gather(run, item, buffers);
    attend(run, item, buffers);
  }
  if (item.partial < 0) write(item, buffers);
}

// One run's results, in place of attend()'s own folding.
void LatentRun::fold(const LatentItem& item, const Buffers& buffers) const {
  const Run run = find_run(item, item.run_begin);
  const std::int64_t queries = query_count(item);
  const float* out = partials_ + item.partial;
  const float* max = out + queries * value_dim_;
  const float* sum = max + queries;
  int count = 0;
  for (int q = 0; q < queries; ++q) {
    if (q % heads_ == 0) count_visible(run, item, q, 1, &count);
    if (count == 0) continue;
    kernels_.attention_fold(buffers.max + q, buffers.sum + q,
                            buffers.out + std::int64_t{q} * value_dim_, max[q], sum[q],
                            out + std::int64_t{q} * value_dim_, value_dim_);
  }
}

void LatentRun::combine(const LatentItem* first, const LatentItem* last, Scratch& scratch) const {
  const Buffers buffers(scratch, query_count(*first), dim_, value_dim_);
  start(*first, buffers);
  for (const LatentItem* item = first; item != last; ++item) fold(*item, buffers);
  write(*first, buffers);
}

}  // namespace kun
