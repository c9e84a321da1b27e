// Scores every visible entry of an indexer's cache for every row, and keeps the best. The cache
// lies in panels as weights do, so that the linear kernels compute the products of all heads.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/cpu/kernels.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "device/latent_attention.h"

namespace kun {

class EntryChoice {
 public:
  EntryChoice(const CpuKernels& kernels, const ChooseArguments& arguments);

  void run(ThreadPool& pool, Scratch& scratch) const;

 private:
  struct Row {
    std::int32_t slice;
    std::int32_t row;  // of the batch
    std::int32_t visible;
  };

  void run_rows(std::span<const Row> rows, ThreadPool& pool, Scratch& scratch) const;
  void load_query(const Row& row, std::byte* out) const;
  void score(const Row& row, const std::byte* query, std::int32_t first, std::int32_t count,
             float* scores) const;
  void score_panel(const Row& row, const std::byte* query, std::int32_t first, std::int32_t count,
                   float* scores) const;
  void score_plain(const Row& row, std::int32_t entry, float* score) const;
  void choose(const Row& row, const float* scores, std::vector<std::int32_t>& order) const;

  const CpuKernels& kernels_;
  const ChooseArguments& arguments_;
  std::int64_t heads_;
  std::int64_t dim_;
  bool panels_;
  bool pairs_;  // queries as BF16 pairs
};

}  // namespace kun
