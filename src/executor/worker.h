// A Worker is one device's share of a model: it holds the cache bytes and runs plans. It turns the
// scheduler's block tables into slots and slices, and the wanted rows into tokens.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "device/ops.h"
#include "executor/hidden_tails.h"
#include "executor/late_entries.h"
#include "models/model.h"
#include "plan/batch_plan.h"
#include "plan/sampling_batch.h"
#include "plan/step_result.h"
#include "sampling/sampler.h"
#include "sampling/verification.h"

namespace kun {

struct WorkerOptions {
  std::vector<int> block_counts;                            // [KV group]
  int vocabulary_limit = 0;                                 // see Sampler
  std::int64_t logits_bytes_max = std::int64_t{128} << 20;  // logits that exist at one time
  // Blocks behind those of the model's guess group that no plan names: for entries of guesses.
  int guess_block_count = 0;
};

// One thread at a time, progress() excepted.
class Worker {
 public:
  // `ops` must outlive the worker. Fails when the block counts do not suit the model's layout or
  // the device has no memory for them.
  static Result<std::unique_ptr<Worker>> create(std::shared_ptr<const Model> model, Ops& ops,
                                                WorkerOptions options);

  const Model& model() const { return *model_; }

  // The forward pass of a plan: copies blocks, computes every token, keeps the hidden states of
  // the wanted rows.
  Status forward(const BatchPlan& plan);

  // After forward() of the same plan: logits and tokens of its wanted rows.
  StepResult sample(const BatchPlan& plan, const SamplingBatch& sampling);

  // Logits of one wanted row: `slice` of the plan, `offset` in its tokens. Holds until it returns.
  using RowCallback =
      std::function<void(std::size_t slice, std::int32_t offset, std::span<const float> logits)>;

  // The door of `kun logits` and perplexity: runs a plan and shows every wanted row, in order, in
  // chunks of rows, so that the logits of a long prompt never exist all at once.
  Status evaluate(const BatchPlan& plan, const RowCallback& row);

  // evaluate() of one whole text from position 0 on, `chunk` tokens at a time, in blocks 0 and up;
  // the callback's offset counts from the text's start. For workers nobody else uses meanwhile.
  // Fails with kResourceExhausted when the text does not fit the cache.
  Status evaluate_text(std::span<const Token> tokens, int chunk, const RowCallback& row);

  // For whoever guesses with the model's next-token module, between steps; see Model::guess().
  const KvStorage& cache() const { return cache_; }
  const HiddenTails* tails() const { return tails_ ? &*tails_ : nullptr; }
  Ops& ops() const { return ops_; }
  const WorkerOptions& options() const { return options_; }
  // Makes the module's entries that still wait. Call it before reading any of them.
  void write_late_entries();
  // Copies a block of the guess group, between any two of its blocks.
  void copy_guess_block(BlockId from, BlockId to);

  // Grows while work gets done; read by any thread.
  std::uint64_t progress() const { return ops_.progress() + phase_count_.load(); }

 private:
  Worker(std::shared_ptr<const Model> model, Ops& ops, WorkerOptions options)
      : model_(std::move(model)),
        ops_(ops),
        options_(std::move(options)),
        sampler_(options_.vocabulary_limit) {}

  Status allocate_cache();
  int allocated_count(std::size_t group) const;
  void copy_block(std::size_t group, BlockId from, BlockId to);
  void copy_blocks(const BatchPlan& plan);
  void prepare_guesses(const BatchPlan& plan);
  void keep_guesses(const BatchPlan& plan, ConstTensorView kept);
  void flatten(const BatchPlan& plan);
  void append(const PlanSlice& slice);
  Status for_each_row(const BatchPlan& plan, const RowCallback& show);
  void pool(const BatchPlan& plan, StepResult& result) const;
  Result<TensorView> compute_logits(ConstTensorView hidden);
  TensorView scratch(std::shared_ptr<std::byte>& buffer, std::int64_t& capacity, std::int64_t rows,
                     std::int64_t cols);

  std::shared_ptr<const Model> model_;
  Ops& ops_;
  WorkerOptions options_;
  Sampler sampler_;

  std::vector<std::shared_ptr<std::byte>> cache_bytes_;
  KvStorage cache_;
  std::vector<std::vector<CachePlane>> group_planes_;  // [KV group]: its planes in all layers
  ForwardBatch batch_;                  // rebuilt each step; spans point into the plan
  std::int64_t sampled_row_count_ = 0;  // of its wanted rows; those that are pooled follow
  std::optional<HiddenTails> tails_;    // where the model has a next-token module; so, too:
  std::optional<LateEntries> late_entries_;
  std::shared_ptr<std::byte> hidden_;
  std::shared_ptr<std::byte> logits_;
  std::int64_t hidden_capacity_ = 0;  // bytes
  std::int64_t logits_capacity_ = 0;
  std::atomic<std::uint64_t> phase_count_ = 0;
};

}  // namespace kun
