// Pooling runs of tokens into compressed entries. Sums are kept as a running softmax per channel,
// one token after the other, so where a step ends does not show in the result.
#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cpu/cpu_ops.h"
#include "base/check.h"

namespace kun {
namespace {

constexpr std::int64_t kChannelsPerItem = 64;

// Per channel: the largest gate so far, sum e^(gate - max), sum e^(gate - max) value.
struct Pool {
  float* max;
  float* sum;
  float* value;

  void clear(std::int64_t count) const {
    std::fill_n(max, count, -INFINITY);
    std::fill_n(sum, count, 0.0F);
    std::fill_n(value, count, 0.0F);
  }

  void copy_from(const Pool& other, std::int64_t count) const {
    std::copy_n(other.max, count, max);
    std::copy_n(other.sum, count, sum);
    std::copy_n(other.value, count, value);
  }

  void add(const float* values, const float* gates, const float* bias, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const float gate = gates[i] + bias[i];
      const float joint = std::fmax(max[i], gate);
      const float old_weight = std::exp(max[i] - joint);
      const float new_weight = std::exp(gate - joint);
      sum[i] = sum[i] * old_weight + new_weight;
      value[i] = value[i] * old_weight + new_weight * values[i];
      max[i] = joint;
    }
  }
};

// Some channels of one slice.
class Compressor {
 public:
  // channel_count: at most kChannelsPerItem.
  Compressor(const CompressArguments& arguments, std::int64_t width, std::int64_t first_channel,
             std::int64_t channel_count)
      : a_(arguments), width_(width), first_(first_channel), count_(channel_count) {
    for (std::size_t p = 0; p < pools_.size(); ++p) {
      float* start = memory_ + p * 3 * static_cast<std::size_t>(kChannelsPerItem);
      pools_[p] = {start, start + count_, start + 2 * count_};
      pools_[p].clear(count_);
    }
  }
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;

  // `entry`: of `out`, the first that this slice completes.
  void run(const AttentionSlice& slice, std::int64_t entry) {
    if (slice.first_position > 0) move_state(slice, slice.first_position - 1, false);
    for (std::int32_t r = 0; r < slice.row_count; ++r) {
      const std::int32_t position = slice.first_position + r;
      add(slice.first_row + r, position);
      if (position % a_.ratio == a_.ratio - 1) finish(a_.out.row<float>(entry++) + first_);
      const bool block_ends = position % a_.block_positions == a_.block_positions - 1;
      if (block_ends || r + 1 == slice.row_count) move_state(slice, position, true);
    }
  }

 private:
  void add(std::int64_t row, std::int32_t position) {
    const std::int64_t step = position % a_.ratio;
    const float* values = a_.value.row<float>(row) + first_;
    const float* gates = a_.gate.row<float>(row) + first_;
    const float* bias = a_.bias.row<float>(step) + first_;
    if (step == 0 && a_.overlap) {
      pools_[2].copy_from(pools_[0], count_);
      pools_[1].clear(count_);
    }
    if (step == 0) pools_[0].clear(count_);
    pools_[0].add(values, gates, bias, count_);
    if (a_.overlap) pools_[1].add(values + width_, gates + width_, bias + width_, count_);
  }

  void finish(float* out) const {
    if (!a_.overlap) {
      for (std::int64_t i = 0; i < count_; ++i) out[i] = pools_[0].value[i] / pools_[0].sum[i];
      return;
    }
    const Pool& before = pools_[2];
    const Pool& own = pools_[1];
    for (std::int64_t i = 0; i < count_; ++i) {
      const float joint = std::fmax(before.max[i], own.max[i]);
      const float before_weight = std::exp(before.max[i] - joint);
      const float own_weight = std::exp(own.max[i] - joint);
      out[i] = (before.value[i] * before_weight + own.value[i] * own_weight) /
               (before.sum[i] * before_weight + own.sum[i] * own_weight);
    }
  }

  // Between the pools and the state of the block that holds `position`.
  void move_state(const AttentionSlice& slice, std::int32_t position, bool store) const {
    const auto block = static_cast<std::size_t>(position / a_.block_positions);
    auto* state =
        reinterpret_cast<float*>(a_.state.data + slice.blocks[block] * a_.state.block_bytes()) +
        first_;
    for (const Pool& pool : std::span(pools_).first(a_.overlap ? 3 : 1)) {
      for (float* part : {pool.max, pool.sum, pool.value}) {
        if (store) {
          std::copy_n(part, count_, state);
        } else {
          std::copy_n(state, count_, part);
        }
        state += width_;
      }
    }
  }

  const CompressArguments& a_;
  std::int64_t width_;
  std::int64_t first_;
  std::int64_t count_;
  float memory_[3 * 3 * kChannelsPerItem];
  // Of this run's first vectors; with overlap of its second, and of the run before's first.
  std::array<Pool, 3> pools_;
};

}  // namespace

void CpuOps::compress(const CompressArguments& a) {
  const std::int64_t width = a.out.cols();
  const std::int64_t row_width = a.overlap ? 2 * width : width;
  CHECK(a.value.rank == 2 && a.value.dtype == DType::kF32 && a.value.cols() == row_width);
  CHECK(a.gate.rank == 2 && a.gate.dtype == DType::kF32 && a.gate.cols() == row_width);
  CHECK(a.bias.rank == 2 && a.bias.rows() == a.ratio && a.bias.cols() == row_width);
  CHECK(a.ratio > 0 && a.block_positions % a.ratio == 0 && a.state.dtype == DType::kF32);
  CHECK(a.state.tokens_per_block == 1 && a.state.role == CacheRole::kRows);
  CHECK(a.state.width == compress_state_width(width, a.overlap));
  slice_entries_.clear();
  std::int64_t entry_count = 0;
  for (const AttentionSlice& slice : a.slices) {
    CHECK(slice.first_row >= 0 && slice.first_row + slice.row_count <= a.value.rows());
    const std::int64_t end = slice.first_position + slice.row_count;
    CHECK(static_cast<std::int64_t>(slice.blocks.size()) * a.block_positions >= end);
    slice_entries_.push_back(entry_count);
    entry_count += end / a.ratio - slice.first_position / a.ratio;
  }
  CHECK(a.out.rows() == entry_count && a.out.dtype == DType::kF32);
  const std::int64_t parts = (width + kChannelsPerItem - 1) / kChannelsPerItem;
  pool_.run(std::ssize(a.slices) * parts, [&](std::int64_t item, int) {
    const auto slice = static_cast<std::size_t>(item / parts);
    const std::int64_t first = item % parts * kChannelsPerItem;
    Compressor(a, width, first, std::min(kChannelsPerItem, width - first))
        .run(a.slices[slice], slice_entries_[slice]);
  });
}

}  // namespace kun
