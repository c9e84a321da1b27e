// Scores every visible entry of an indexer's cache for every row, and keeps the best. The cache
// lies in panels as weights do, so that the linear kernels compute the products of all heads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/input_tiles.h"
#include "backends/cpu/kernels.h"
#include "backends/cpu/scratch.h"
#include "backends/cpu/thread_pool.h"
#include "device/latent_attention.h"

namespace kun {

// A row that chooses, and how many entries it sees.
struct ChoiceRow {
  std::int32_t slice;
  std::int32_t row;  // of the batch
  std::int32_t visible;
};

class EntryChoice {
 public:
  // What it works in, kept from call to call by its owner.
  struct Memory {
    Scratch& scores;
    std::span<Scratch> workers;  // one for each thread of the pool
    std::vector<ChoiceRow>& rows;
  };

  EntryChoice(const CpuKernels& kernels, const ChooseArguments& arguments);

  void run(ThreadPool& pool, const Memory& memory) const;

 private:
  using Row = ChoiceRow;

  void run_rows(ThreadPool& pool, const Memory& memory) const;
  void load_query(const Row& row, std::byte* out) const;
  void score(const Row& row, const std::byte* query, std::int32_t first, std::int32_t count,
             float* scores) const;
  void score_panel(const Row& row, const std::byte* query, std::int32_t first, std::int32_t count,
                   float* scores) const;
  void score_plain(const Row& row, std::int32_t entry, float* score) const;
  void choose(const Row& row, const float* scores, Scratch& scratch) const;

  const CpuKernels& kernels_;
  const ChooseArguments& arguments_;
  std::int64_t heads_;
  std::int64_t dim_;
  bool panels_;
  PanelFormat format_;  // of panels of keys
  InputForm form_;      // of queries
};

}  // namespace kun
