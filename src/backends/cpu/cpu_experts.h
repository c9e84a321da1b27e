// The state that a mixture of experts needs between its steps, kept so that no call allocates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/grouped_product.h"
#include "device/experts.h"

namespace kun {

// Tokens of one call, grouped by the experts they go to. One thread at a time.
class ExpertRun {
 public:
  ExpertRun(const CpuKernels& kernels, ThreadPool& pool)
      : kernels_(kernels), pool_(pool), product_(kernels, pool) {}

  void run(const ExpertArguments& arguments);

  // Ops::linear_groups
  void run_groups(ConstTensorView in, std::span<const PackedMatrix* const> weights, TensorView out);

 private:
  void run_chunk(const ExpertArguments& arguments);
  void group_tokens(const ExpertArguments& arguments);
  void add_shared(const ExpertArguments& arguments);
  void put_shared_first(const ExpertArguments& arguments);
  void combine(const ExpertArguments& arguments, const float* made) const;

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  GroupedProduct product_;
  Scratch gated_;
  Scratch made_;
  std::vector<std::int64_t> starts_;        // [expert]: where its entries begin
  std::vector<std::int64_t> entry_of_;      // [token * chosen + j]
  std::vector<const float*> rows_;          // [entry]
  std::vector<ProductRows> parts_;          // of experts with tokens, then the shared one
  std::vector<const ExpertWeights*> used_;  // beside parts_
  std::vector<ProductGroup> groups_;
};

// Ops::route. worker_scratch: one for each thread of the pool.
void route_tokens(const RouteArguments& arguments, ThreadPool& pool,
                  std::span<Scratch> worker_scratch);

}  // namespace kun
