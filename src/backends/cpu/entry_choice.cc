#include "backends/cpu/entry_choice.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cpu/cache_layout.h"
#include "backends/cpu/cpu_ops.h"
#include "base/check.h"
#include "tensor/float_formats.h"

namespace kun {
namespace {

constexpr std::int32_t kEntriesPerItem = 512;
constexpr std::int64_t kScoreFloatsMax = std::int64_t{16} << 20;  // of one round of rows

void check_arguments(const ChooseArguments& a) {
  CHECK(a.query.rank == 3 && a.query.dtype == DType::kF32 && a.query.cols() == a.keys.width);
  CHECK(a.weights.rank == 2 && a.weights.dtype == DType::kF32);
  CHECK(a.weights.rows() == a.query.rows() && a.weights.cols() == a.query.shape[1]);
  CHECK(a.keys.role == CacheRole::kIndexKeys && a.stride > 0 && a.first >= 0);
  CHECK(a.keys.dtype == DType::kF32 || a.keys.dtype == DType::kBF16);
  CHECK(a.chosen.rank == 2 && a.chosen.dtype == DType::kI32 && a.chosen.rows() == a.query.rows());
  for (const AttentionSlice& slice : a.slices) {
    CHECK(slice.first_row >= 0 && slice.first_row + slice.row_count <= a.query.rows());
    const std::int64_t seen = (slice.first_position + slice.row_count) / a.stride;
    CHECK(static_cast<std::int64_t>(slice.blocks.size()) * a.keys.tokens_per_block >= seen);
  }
}

}  // namespace

EntryChoice::EntryChoice(const CpuKernels& kernels, const ChooseArguments& arguments)
    : kernels_(kernels), arguments_(arguments) {
  check_arguments(arguments);
  heads_ = arguments.query.shape[1];
  dim_ = arguments.query.cols();
  panels_ = arrangement(arguments.keys) == CacheArrangement::kIndexPanels;
  format_ = arguments.keys.dtype == DType::kF32 ? PanelFormat::kF32 : PanelFormat::kBF16;
  form_ = input_form(kernels, format_);
}

// Its heads are to a product what tokens are elsewhere.
void EntryChoice::load_query(const Row& row, std::byte* out) const {
  const TokenTiles tiles(heads_, tile_tokens(form_));
  const std::int64_t head_bytes = input_bytes(form_, dim_);
  for (std::int64_t t = 0; t < tiles.count; ++t) {
    const std::int64_t heads = tiles.size(t);
    std::byte* base = out + tiles.first(t) * head_bytes;
    for (std::int64_t lane = 0; lane < heads; ++lane) {
      const std::int64_t head = tiles.first(t) + lane;
      const float* query = arguments_.query.row<float>(row.row) + head * arguments_.query.stride[1];
      convert_token(kernels_, form_, query, dim_, lane, heads, base);
    }
  }
}

// `count` entries from `first` on, all in one panel of 32 that begins there.
void EntryChoice::score_panel(const Row& row, const std::byte* query, std::int32_t first,
                              std::int32_t count, float* scores) const {
  const CachePlane& keys = arguments_.keys;
  const AttentionSlice& slice = arguments_.slices[static_cast<std::size_t>(row.slice)];
  const auto block = static_cast<std::size_t>(first / keys.tokens_per_block);
  const float* weights = arguments_.weights.row<float>(row.row);
  const TokenTiles tiles(heads_, tile_tokens(form_));
  float products[kLineTileTokens * kPanelRows];
  LinearTile call{};
  call.panel = keys.data + slice.blocks[block] * keys.block_bytes() +
               first % keys.tokens_per_block * dim_ * size_bytes(keys.dtype);
  call.cols = dim_;
  call.rows = count;
  call.out = products;
  call.out_stride = kPanelRows;
  std::fill_n(scores, count, 0.0F);
  for (std::int64_t t = 0; t < tiles.count; ++t) {
    call.activations = query + tiles.first(t) * input_bytes(form_, dim_);
    call.tokens = tiles.size(t);
    kernels_.linear[static_cast<std::size_t>(format_)](call);
    for (int h = 0; h < call.tokens; ++h) {
      const float weight = weights[tiles.first(t) + h];
      const float* product = products + h * kPanelRows;
      for (int i = 0; i < count; ++i) scores[i] += weight * std::max(product[i], 0.0F);
    }
  }
}

// For block lengths that panels do not divide.
void EntryChoice::score_plain(const Row& row, std::int32_t entry, float* score) const {
  const CachePlane& keys = arguments_.keys;
  const AttentionSlice& slice = arguments_.slices[static_cast<std::size_t>(row.slice)];
  const auto block = static_cast<std::size_t>(entry / keys.tokens_per_block);
  const std::byte* key = keys.data + slice.blocks[block] * keys.block_bytes() +
                         entry % keys.tokens_per_block * dim_ * size_bytes(keys.dtype);
  const auto element = [&](std::int64_t i) {
    if (keys.dtype == DType::kF32) return reinterpret_cast<const float*>(key)[i];
    return bf16_to_f32(reinterpret_cast<const std::uint16_t*>(key)[i]);
  };
  float sum = 0.0F;
  for (std::int64_t h = 0; h < heads_; ++h) {
    const float* query = arguments_.query.row<float>(row.row) + h * arguments_.query.stride[1];
    float product = 0.0F;
    for (std::int64_t i = 0; i < dim_; ++i) product += query[i] * element(i);
    sum += arguments_.weights.row<float>(row.row)[h] * std::max(product, 0.0F);
  }
  *score = sum;
}

void EntryChoice::score(const Row& row, const std::byte* query, std::int32_t first,
                        std::int32_t count, float* scores) const {
  const std::int32_t step = panels_ ? kPanelRows : 1;
  for (std::int32_t done = 0; done < count; done += step) {
    if (panels_) {
      score_panel(row, query, first + done, std::min(step, count - done), scores + done);
    } else {
      score_plain(row, first + done, scores + done);
    }
  }
}

void EntryChoice::choose(const Row& row, const float* scores, Scratch& scratch) const {
  auto* chosen = arguments_.chosen.row<std::int32_t>(row.row);
  const auto wanted = static_cast<std::int32_t>(arguments_.chosen.cols());
  const std::int32_t visible = std::max(0, row.visible - arguments_.first);
  const std::int32_t count = std::min(wanted, visible);
  const std::span order(scratch.get_array<std::int32_t>(visible),
                        static_cast<std::size_t>(visible));
  std::iota(order.begin(), order.end(), arguments_.first);
  if (count < visible) {
    const auto key = [&](std::int32_t i) { return std::isnan(scores[i]) ? -INFINITY : scores[i]; };
    std::nth_element(order.begin(), order.begin() + count, order.end(),
                     [&](std::int32_t a, std::int32_t b) {
                       const float left = key(a);
                       const float right = key(b);
                       return left != right ? left > right : a < b;
                     });
    std::sort(order.begin(), order.begin() + count);
  }
  std::copy_n(order.begin(), count, chosen);
  std::fill(chosen + count, chosen + wanted, -1);
}

void EntryChoice::run_rows(ThreadPool& pool, const Memory& work) const {
  const std::span<const Row> rows = work.rows;
  std::int32_t longest = 1;
  for (const Row& row : rows) longest = std::max(longest, row.visible);
  const std::int64_t query_bytes = heads_ * input_bytes(form_, dim_);
  const std::int64_t row_bytes = query_bytes + std::int64_t{longest} * 4;
  std::byte* memory = work.scores.get(std::ssize(rows) * row_bytes);
  const auto query_of = [&](std::int64_t i) { return memory + i * query_bytes; };
  const auto scores_of = [&](std::int64_t i) {
    return reinterpret_cast<float*>(memory + std::ssize(rows) * query_bytes) + i * longest;
  };
  pool.run(std::ssize(rows), [&](std::int64_t i, int) {
    load_query(rows[static_cast<std::size_t>(i)], query_of(i));
  });
  const std::int64_t parts = (longest + kEntriesPerItem - 1) / kEntriesPerItem;
  pool.run(std::ssize(rows) * parts, [&](std::int64_t item, int) {
    const std::int64_t i = item / parts;
    const Row& row = rows[static_cast<std::size_t>(i)];
    const auto first = static_cast<std::int32_t>(item % parts) * kEntriesPerItem;
    const std::int32_t count = std::min(kEntriesPerItem, row.visible - first);
    if (count > 0) score(row, query_of(i), first, count, scores_of(i) + first);
  });
  pool.run(std::ssize(rows), [&](std::int64_t i, int worker) {
    choose(rows[static_cast<std::size_t>(i)], scores_of(i),
           work.workers[static_cast<std::size_t>(worker)]);
  });
}

void EntryChoice::run(ThreadPool& pool, const Memory& memory) const {
  std::vector<Row>& rows = memory.rows;
  rows.clear();
  std::int64_t floats = 0;
  const auto flush = [&] {
    if (!rows.empty()) run_rows(pool, memory);
    rows.clear();
    floats = 0;
  };
  for (std::size_t s = 0; s < arguments_.slices.size(); ++s) {
    const AttentionSlice& slice = arguments_.slices[s];
    for (std::int32_t r = 0; r < slice.row_count; ++r) {
      const std::int32_t visible = (slice.first_position + r + 1) / arguments_.stride;
      rows.push_back({static_cast<std::int32_t>(s), slice.first_row + r, visible});
      floats += visible + heads_ * dim_;
      if (floats > kScoreFloatsMax) flush();
    }
  }
  flush();
}

}  // namespace kun
