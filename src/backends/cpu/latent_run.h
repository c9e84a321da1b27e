// One latent attention call, cut into items. Entries are gathered from wherever a row's sources
// have them, 256 at a time, into the arrangement that the attention kernels read; all heads of the
// row then share them. Runs are folded in order, so who computed what does not show in the result.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/scratch.h"
#include "device/latent_attention.h"

namespace kun {

// Some rows of one slice, over some runs of their entries.
struct LatentItem {
  std::int32_t slice;
  std::int32_t first_row;  // within the slice
  std::int32_t row_count;
  std::int32_t run_begin;
  std::int32_t run_end;
  std::int64_t partial;  // where this item's results wait for combine(), in floats; -1: it is whole
};

class LatentRun {
 public:
  // Requires: every source has the same slices, apart from their blocks.
  LatentRun(const CpuKernels& kernels, const LatentAttentionArguments& arguments);

  // Fills `items` with units of work. When whole rows would not busy `thread_count` threads, each
  // run is an item of its own.
  void plan(int thread_count, std::vector<LatentItem>* items);

  std::int64_t partial_floats() const { return partial_floats_; }
  void set_partials(float* partials) { partials_ = partials; }

  void run(const LatentItem& item, Scratch& scratch) const;

  // Folds the runs of the items [first, last), which are all of some rows. Only after set_partials.
  void combine(const LatentItem* first, const LatentItem* last, Scratch& scratch) const;

 private:
  struct Buffers;

  // Consecutive entries of what a row sees of a source.
  struct Run {
    const LatentSource* source;
    int first;
    int count;  // of the row that sees most
  };

  const AttentionSlice& slice(const LatentItem& item) const {
    return arguments_.sources.front().slices[static_cast<std::size_t>(item.slice)];
  }
  int query_count(const LatentItem& item) const { return item.row_count * heads_; }
  std::int64_t partial_size(const LatentItem& item) const {
    return std::int64_t{query_count(item)} * (value_dim_ + 2);
  }
  int visible_count(const LatentSource& source, const LatentItem& item, int row) const;
  int run_count(const LatentItem& item) const;
  Run find_run(const LatentItem& item, int index) const;
  int entry(const Run& run, const LatentItem& item, int index) const;
  void count_visible(const Run& run, const LatentItem& item, int first, int queries,
                     int* counts) const;
  void load_queries(const LatentItem& item, const Buffers& buffers) const;
  void gather(const Run& run, const LatentItem& item, const Buffers& buffers) const;
  void attend(const Run& run, const LatentItem& item, const Buffers& buffers) const;
  void start(const LatentItem& item, const Buffers& buffers) const;
  void fold(const LatentItem& item, const Buffers& buffers) const;
  void write(const LatentItem& item, const Buffers& buffers) const;

  const CpuKernels& kernels_;
  const LatentAttentionArguments& arguments_;
  int heads_;
  int dim_;
  int value_dim_;
  bool wide_;  // F32 cache
  std::int64_t partial_floats_ = 0;
  float* partials_ = nullptr;
};

}  // namespace kun
