// One attention call, cut into items. Queries that share a key head are taken together, the context
// is cut every kSplitPositions positions, and splits are folded in order: a row's result is the
// same whatever else is computed, and by whom.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/scratch.h"
#include "device/attention.h"

namespace kun {

// Some queries of one slice that share a key head, over some splits of their context.
struct AttentionItem {
  std::int32_t slice;
  std::int32_t first_row;  // within the slice
  std::int32_t row_count;
  std::int32_t kv_head;
  std::int32_t first_head;  // within the key head's group
  std::int32_t head_count;
  std::int32_t split_begin;
  std::int32_t split_end;
  std::int64_t partial;  // index of this item's results in AttentionRun::partials; -1: none

  int query_count() const { return row_count * head_count; }
};

class AttentionRun {
 public:
  AttentionRun(const CpuKernels& kernels, const AttentionArguments& arguments);

  // Whether waking the pool would cost more than it saves.
  bool is_small() const;

  // Fills `items` with units of work. Where whole rows would keep some of `thread_count` threads
  // waiting for others, each split is an item of its own, whose results wait in `partials` for
  // combine().
  void plan(int thread_count, std::vector<AttentionItem>* items);

  // Floats of partial results; 0 when every item finishes its own rows.
  std::int64_t partial_floats() const { return partial_floats_; }
  void set_partials(float* partials) { partials_ = partials; }

  // `next` (or null) is what this thread will most likely run next: its first split is prefetched.
  void run(const AttentionItem& item, const AttentionItem* next, Scratch& scratch) const;

  // Folds the splits of the first item's rows, which begin at 0 and end where the next begin, into
  // the output, in order. Only after set_partials.
  void combine(std::span<const AttentionItem> items, Scratch& scratch) const;

 private:
  struct Buffers;

  void add_items(int slice_index, std::vector<AttentionItem>* items) const;
  void split_items(std::int64_t splits_max, std::vector<AttentionItem>* items);
  void load_queries(const AttentionItem& item, const Buffers& buffers) const;
  void load_query(const float* query, int index, const Buffers& buffers) const;
  int count_positions(const AttentionItem& item, int split, int* counts) const;
  void place_split(const AttentionItem& item, int split, int count, const Buffers& buffers,
                   AttentionTile* tile) const;
  std::int64_t piece_bytes(int dim) const;
  const std::byte* key_group(const AttentionItem& item, int position) const;
  const std::byte* value_group(const AttentionItem& item, int position) const;
  void place_next(const AttentionItem& item, int split, AttentionTile* tile) const;
  void place_group(const AttentionItem& item, int position, int count, int group,
                   const Buffers& buffers, AttentionTile* tile) const;
  void fold(const AttentionTile& split, const Buffers& buffers) const;
  void write(const AttentionItem& item, const Buffers& buffers) const;
  std::int64_t partial_size(const AttentionItem& item) const {
    return std::int64_t{item.query_count()} * (value_dim_ + 2);
  }
  void use_partial(const AttentionItem& item, AttentionTile* tile) const;
  const AttentionSlice& slice_of(const AttentionItem& item) const {
    return arguments_.slices[static_cast<std::size_t>(item.slice)];
  }

  const CpuKernels& kernels_;
  const AttentionArguments& arguments_;
  int group_;       // query heads per key head
  int dim_;         // of a query
  int padded_dim_;  // as kernels see it: even for BF16, a multiple of 4 for INT8
  int value_dim_;
  bool wide_;   // F32 cache
  bool coded_;  // INT8 cache
  bool direct_keys_;
  bool direct_values_;
  std::int64_t partial_floats_ = 0;
  float* partials_ = nullptr;
};

}  // namespace kun
