#include "executor/worker.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "executor/token_score.h"

namespace kun {

Result<std::unique_ptr<Worker>> Worker::create(std::shared_ptr<const Model> model, Ops& ops,
                                               WorkerOptions options) {
  CHECK(model != nullptr && options.logits_bytes_max > 0);
  std::unique_ptr<Worker> worker(new Worker(std::move(model), ops, std::move(options)));
  RETURN_IF_ERROR(worker->allocate_cache());
  if (worker->model_->guess_group() >= 0) {
    worker->tails_.emplace(worker->model_->hidden_size());
    worker->late_entries_.emplace(*worker->model_);
  }
  return worker;
}

Status Worker::allocate_cache() {
  const KvLayout& layout = model_->kv_layout();
  if (options_.block_counts.size() != layout.groups.size()) {
    return invalid_argument(
        fmt::format("the model's cache has {} groups, and block counts for {} "
                    "are given",
                    layout.groups.size(), options_.block_counts.size()));
  }
  group_planes_.resize(layout.groups.size());
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const KvGroup& group = layout.groups[g];
    const std::int64_t block_count = options_.block_counts[g];
    if (block_count < 1) {
      return resource_exhausted(
          "the memory set aside for the KV cache does not hold a single block; free memory or "
          "choose a smaller model");
    }
    CHECK(group.tokens_per_block > 0);
    const std::int64_t allocated = allocated_count(g);
    CHECK(allocated <= std::numeric_limits<std::int32_t>::max() / group.tokens_per_block);
    for (const int layer : group.layers) {
      CHECK(layer >= 0);
      const auto index = static_cast<std::size_t>(layer);
      if (cache_.planes.size() <= index) cache_.planes.resize(index + 1);
      for (const KvPlane& plane : group.planes) {
        CachePlane bytes;
        bytes.dtype = plane.dtype;
        bytes.width = plane.width;
        bytes.head_width = plane.head_width;
        CHECK(group.tokens_per_block % plane.positions_per_entry == 0);
        bytes.tokens_per_block = group.tokens_per_block / plane.positions_per_entry;
        bytes.block_count = allocated;
        cache_bytes_.push_back(ops_.allocate(allocated * bytes.block_bytes()));
        if (cache_bytes_.back() == nullptr) {
          return resource_exhausted(fmt::format(
              "the device has no memory for {} blocks of KV cache; give fewer", block_count));
        }
        bytes.data = cache_bytes_.back().get();
        cache_.planes[index].push_back(bytes);
        group_planes_[g].push_back(bytes);
      }
    }
  }
  return {};
}

void Worker::copy_blocks(const BatchPlan& plan) {
  const auto has_entries = [&](const BlockCopy& copy) {
    return copy.group == model_->guess_group();
  };
  if (std::ranges::any_of(plan.block_copies, has_entries)) write_late_entries();
  for (const BlockCopy& copy : plan.block_copies) {
    const auto group_index = static_cast<std::size_t>(copy.group);
    CHECK(group_index < group_planes_.size());
    const int block_count = options_.block_counts[group_index];
    CHECK(copy.from >= 0 && copy.from < block_count && copy.to >= 0 && copy.to < block_count);
    copy_block(group_index, copy.from, copy.to);
  }
}

void Worker::copy_block(std::size_t group, BlockId from, BlockId to) {
  if (from == to) return;
  for (const CachePlane& plane : group_planes_[group]) {
    const std::int64_t bytes = plane.block_bytes();
    std::memcpy(plane.data + to * bytes, plane.data + from * bytes,
                static_cast<std::size_t>(bytes));
  }
}

void Worker::copy_guess_block(BlockId from, BlockId to) {
  CHECK(model_->guess_group() >= 0);
  const auto group = static_cast<std::size_t>(model_->guess_group());
  const int count = allocated_count(group);
  CHECK(from >= 0 && from < count && to >= 0 && to < count);
  copy_block(group, from, to);
}

// Blocks of a group, those of guesses included.
int Worker::allocated_count(std::size_t group) const {
  const bool guesses = static_cast<int>(group) == model_->guess_group();
  return options_.block_counts[group] + (guesses ? options_.guess_block_count : 0);
}

void Worker::flatten(const BatchPlan& plan) {
  batch_.tokens.clear();
  batch_.positions.clear();
  batch_.sequences.clear();
  batch_.wanted_rows.clear();
  batch_.groups.resize(model_->kv_layout().groups.size());
  for (GroupBatch& group : batch_.groups) {
    group.slots.clear();
    group.slices.clear();
  }
  for (const PlanSlice& slice : plan.slices) append(slice);
  // What is pooled needs no logits: behind the rows that do, it keeps them in one piece.
  sampled_row_count_ = std::ssize(batch_.wanted_rows);
  std::int32_t first_row = 0;
  for (const PlanSlice& slice : plan.slices) {
    for (const std::int32_t offset : slice.wanted) {
      if (slice.pooling != Pooling::kNone) batch_.wanted_rows.push_back(first_row + offset);
    }
    first_row += static_cast<std::int32_t>(slice.tokens.size());
  }
}

void Worker::append(const PlanSlice& slice) {
  const auto first_row = static_cast<std::int32_t>(batch_.tokens.size());
  const auto row_count = static_cast<std::int32_t>(slice.tokens.size());
  CHECK(row_count > 0 && slice.first_position >= 0);
  CHECK(slice.blocks.size() == batch_.groups.size());
  batch_.sequences.push_back(slice.sequence);
  batch_.tokens.insert(batch_.tokens.end(), slice.tokens.begin(), slice.tokens.end());
  for (std::int32_t row = 0; row < row_count; ++row) {
    batch_.positions.push_back(slice.first_position + row);
  }
  std::int32_t last = -1;
  for (const std::int32_t offset : slice.wanted) {
    CHECK(offset >= 0 && offset >= last && offset < row_count);
    const bool sampled = slice.pooling == Pooling::kNone;
    if (sampled && offset != last) batch_.wanted_rows.push_back(first_row + offset);
    last = offset;
  }
  for (std::size_t g = 0; g < batch_.groups.size(); ++g) {
    const std::vector<BlockId>& blocks = slice.blocks[g];
    const std::int32_t length = model_->kv_layout().groups[g].tokens_per_block;
    for (std::int32_t row = 0; row < row_count; ++row) {
      const std::int32_t position = slice.first_position + row;
      const auto block = static_cast<std::size_t>(position / length);
      CHECK(block < blocks.size());
      CHECK(blocks[block] >= 0 && blocks[block] < options_.block_counts[g]);
      batch_.groups[g].slots.push_back(blocks[block] * length + position % length);
    }
    batch_.groups[g].slices.push_back({first_row, row_count, slice.first_position, blocks});
  }
}

TensorView Worker::scratch(std::shared_ptr<std::byte>& buffer, std::int64_t& capacity,
                           std::int64_t rows, std::int64_t cols) {
  const std::int64_t bytes = rows * cols * size_bytes(DType::kF32);
  if (bytes > capacity) {
    buffer.reset();  // first, so that both never exist together
    capacity = 0;
    buffer = ops_.allocate(bytes);
    if (buffer != nullptr) capacity = bytes;
  }
  return {buffer.get(), DType::kF32, {rows, cols}};
}

Status Worker::forward(const BatchPlan& plan) {
  copy_blocks(plan);
  phase_count_.fetch_add(1);
  if (plan.slices.empty()) return {};
  flatten(plan);
  if (tails_) prepare_guesses(plan);
  const std::int64_t wanted_count = std::ssize(batch_.wanted_rows);
  const std::int64_t kept_count = std::ssize(batch_.kept_rows);
  const TensorView hidden =
      scratch(hidden_, hidden_capacity_, wanted_count + kept_count, model_->hidden_size());
  if (wanted_count + kept_count > 0 && hidden.data == nullptr) {
    return resource_exhausted("the device has no memory for a step's hidden states");
  }
  const Status status = model_->forward(batch_, cache_, hidden);
  if (tails_ && status.ok()) {
    keep_guesses(plan, hidden.slice_rows(wanted_count, kept_count));
  }
  phase_count_.fetch_add(1);
  return status;
}

void Worker::prepare_guesses(const BatchPlan& plan) {
  tails_->prepare(plan, batch_);
  batch_.entries_later = LateEntries::may_wait(batch_);
  // What the step writes itself comes behind what waits, in places that may be the same.
  if (!batch_.entries_later || !late_entries_->has_room(std::ssize(batch_.tokens))) {
    write_late_entries();
  }
}

void Worker::keep_guesses(const BatchPlan& plan, ConstTensorView kept) {
  if (batch_.entries_later) late_entries_->add(batch_, kept);
  tails_->keep(plan, kept);
}

void Worker::write_late_entries() {
  if (late_entries_) late_entries_->write(cache_);
}

// Sums the hidden states of each slice that pools, row by row in the order of its tokens.
void Worker::pool(const BatchPlan& plan, StepResult& result) const {
  const auto size = static_cast<std::size_t>(model_->hidden_size());
  const ConstTensorView hidden(hidden_.get(), DType::kF32,
                               {std::ssize(batch_.wanted_rows), model_->hidden_size()});
  std::int64_t row = sampled_row_count_;
  for (std::size_t s = 0; s < plan.slices.size(); ++s) {
    const PlanSlice& slice = plan.slices[s];
    if (slice.pooling == Pooling::kNone || slice.wanted.empty()) continue;
    std::vector<double>& sum = result.slices[s].pooled;
    sum.resize(size, 0.0);
    for (std::size_t i = 0; i < slice.wanted.size(); ++i) {
      const float* values = hidden.row<float>(row++);
      for (std::size_t c = 0; c < size; ++c) sum[c] += double{values[c]};
    }
    const auto finite = [](double value) { return std::isfinite(value); };
    result.slices[s].corrupted = !std::ranges::all_of(sum, finite);
  }
}

// Shows the logits of the plan's sampled rows, after forward(). A row that is wanted more than once
// (by the choices of a request) is computed once and shown as often.
Status Worker::for_each_row(const BatchPlan& plan, const RowCallback& show) {
  const std::int64_t vocabulary = model_->vocabulary_size();
  const std::int64_t row_count = sampled_row_count_;
  const std::int64_t chunk_max =
      std::max<std::int64_t>(1, options_.logits_bytes_max / (vocabulary * size_bytes(DType::kF32)));
  const TensorView hidden(hidden_.get(), DType::kF32, {row_count, model_->hidden_size()});
  TensorView logits;
  std::int64_t chunk_first = 0;  // logits hold rows [chunk_first, chunk_end) of the wanted rows
  std::int64_t chunk_end = 0;
  std::int64_t row = -1;
  for (std::size_t s = 0; s < plan.slices.size(); ++s) {
    if (plan.slices[s].pooling != Pooling::kNone) continue;
    std::int32_t last = -1;
    for (const std::int32_t offset : plan.slices[s].wanted) {
      if (std::exchange(last, offset) != offset) ++row;
      if (row == chunk_end) {
        chunk_first = chunk_end;
        chunk_end = std::min(chunk_first + chunk_max, row_count);
        ASSIGN_OR_RETURN(logits,
                         compute_logits(hidden.slice_rows(chunk_first, chunk_end - chunk_first)));
      }
      show(s, offset, {logits.row<float>(row - chunk_first), static_cast<std::size_t>(vocabulary)});
    }
  }
  return {};
}

Result<TensorView> Worker::compute_logits(ConstTensorView hidden) {
  const TensorView logits =
      scratch(logits_, logits_capacity_, hidden.rows(), model_->vocabulary_size());
  if (logits.data == nullptr) {
    return resource_exhausted("the device has no memory for a step's logits");
  }
  RETURN_IF_ERROR(model_->logits(hidden, logits));
  phase_count_.fetch_add(1);
  return logits;
}

StepResult Worker::sample(const BatchPlan& plan, const SamplingBatch& sampling) {
  StepResult result;
  result.step = plan.step;
  std::size_t wanted_count = 0;
  result.slices.reserve(plan.slices.size());
  for (const PlanSlice& slice : plan.slices) {
    result.slices.push_back({slice.sequence, {}, false});
    if (slice.pooling == Pooling::kNone) wanted_count += slice.wanted.size();
  }
  CHECK(sampling.rows.size() == wanted_count);
  pool(plan, result);
  std::size_t row = 0;
  Verification verification(sampler_);
  result.status = for_each_row(plan, [&](std::size_t s, std::int32_t, auto logits) {
    const SamplingRow& wanted = sampling.rows[row++];
    SliceResult& slice = result.slices[s];
    if (wanted.given < 0 && wanted.candidate_count == 0) {
      return verification.take(logits, wanted, slice);
    }
    auto token = wanted.candidate_count > 0 ? sampler_.candidates(logits, wanted)
                                            : score_token(logits, options_.vocabulary_limit,
                                                          wanted.given, wanted.given_top_count);
    const bool starved = wanted.candidate_count > 0 && sampler_.starved();
    (starved ? slice.starved : slice.corrupted) |= !token.has_value();
    if (token.has_value()) slice.tokens.push_back(*std::move(token));
  });
  for (SliceResult& slice : result.slices) {
    if (slice.corrupted || slice.starved) slice.tokens.clear();
    if (slice.corrupted) slice.pooled.clear();
  }
  phase_count_.fetch_add(1);
  return result;
}

Status Worker::evaluate(const BatchPlan& plan, const RowCallback& row) {
  RETURN_IF_ERROR(forward(plan));
  return for_each_row(plan, row);
}

Status Worker::evaluate_text(std::span<const Token> tokens, int chunk, const RowCallback& row) {
  CHECK(chunk > 0);
  const KvLayout& layout = model_->kv_layout();
  BatchPlan plan;
  PlanSlice& slice = plan.slices.emplace_back();
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    const auto length = static_cast<std::size_t>(layout.groups[g].tokens_per_block);
    const std::size_t needed = (tokens.size() + length - 1) / length;
    const auto given = static_cast<std::size_t>(options_.block_counts[g]);
    if (needed > given) {
      return resource_exhausted(
          fmt::format("{} tokens do not fit a cache of {} blocks of {} "
                      "tokens; shorten the text or enlarge the cache",
                      tokens.size(), given, length));
    }
    std::vector<BlockId>& blocks = slice.blocks.emplace_back();
    for (std::size_t b = 0; b < needed; ++b) blocks.push_back(static_cast<BlockId>(b));
  }
  for (std::size_t first = 0; first < tokens.size(); first += slice.tokens.size()) {
    const auto part =
        tokens.subspan(first, std::min(static_cast<std::size_t>(chunk), tokens.size() - first));
    slice.first_position = static_cast<std::int32_t>(first);
    slice.tokens.assign(part.begin(), part.end());
    slice.wanted.clear();
    for (std::size_t i = 0; i < part.size(); ++i) {
      slice.wanted.push_back(static_cast<std::int32_t>(i));
    }
    RETURN_IF_ERROR(evaluate(plan, [&](std::size_t s, std::int32_t offset, auto logits) {
      row(s, static_cast<std::int32_t>(first) + offset, logits);
    }));
    ++plan.step;
  }
  return {};
}

}  // namespace kun
