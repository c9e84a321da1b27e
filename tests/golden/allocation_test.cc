// "No allocation in a step": once sequences decode at a steady pace, the forward pass and the head
// take all memory from what earlier steps left, in every kind of model.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "base/test_allocations.h"
#include "checkpoint/checkpoint.h"
#include "executor/worker.h"
#include "models/registry.h"
#include "sampling/sampler.h"

namespace kun {
namespace {

constexpr int kSequences = 3;
constexpr int kPositionsMax = 160;
constexpr int kWarmSteps = 40;
constexpr int kSteps = 30;

class Decoding {
 public:
  Decoding(const std::string& model, std::optional<DType> cache) {
    auto device = open_cpu_device({.thread_count = 2, .cache = cache});
    CHECK(device.has_value());
    device_ = *std::move(device);
    auto checkpoint = open_checkpoint(std::filesystem::path(KUN_TEST_DATA) / "tiny-models" / model);
    CHECK(checkpoint.has_value());
    checkpoint_ = *std::move(checkpoint);
    auto loaded = load_model(*checkpoint_, device_->ops(), {.cache_dtype = device_->cache_dtype()});
    CHECK(loaded.has_value());
    const std::vector<KvGroup>& groups = (*loaded)->kv_layout().groups;
    std::vector<int> block_counts;
    for (const KvGroup& group : groups) {
      const int each = (kPositionsMax + group.tokens_per_block - 1) / group.tokens_per_block;
      block_counts.push_back(kSequences * each);
    }
    for (int s = 0; s < kSequences; ++s) {
      PlanSlice& slice = plan_.slices.emplace_back();
      slice.sequence = static_cast<SequenceId>(s);
      for (const int count : block_counts) {
        std::vector<BlockId>& blocks = slice.blocks.emplace_back();
        for (int b = s; b < count; b += kSequences) blocks.push_back(b);
      }
    }
    auto worker =
        Worker::create(*std::move(loaded), device_->ops(), {.block_counts = block_counts});
    CHECK(worker.has_value());
    worker_ = *std::move(worker);
  }

  // `count` tokens of every sequence; returns the allocations of the forward pass.
  std::size_t step(int count) {
    for (PlanSlice& slice : plan_.slices) {
      slice.first_position = position_ + static_cast<int>(slice.sequence);
      if (position_ == 0) slice.first_position = 0;
      const int tokens = position_ == 0 ? count + static_cast<int>(slice.sequence) : count;
      slice.tokens.resize(static_cast<std::size_t>(tokens));
      for (int i = 0; i < tokens; ++i) {
        slice.tokens[static_cast<std::size_t>(i)] = (7 * position_ + 3 * i + 1) % 32;
      }
      slice.wanted.assign(1, tokens - 1);
    }
    position_ += count;
    ++plan_.step;
    const std::size_t before = allocation_count;
    const Status status = worker_->forward(plan_);
    const std::size_t after = allocation_count;
    CHECK(status.ok());
    return after - before;
  }

  // What sampling the last step's rows greedily allocates.
  std::size_t sample() {
    SamplingParams params;
    params.temperature = 0.0F;
    SamplingBatch sampling;
    sampling.rows.resize(kSequences);
    for (SamplingRow& row : sampling.rows) row.params = &params;
    const std::size_t before = allocation_count;
    const StepResult result = worker_->sample(plan_, sampling);
    const std::size_t after = allocation_count;
    CHECK(result.status.ok() && result.slices.size() == kSequences);
    return after - before;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Worker> worker_;
  BatchPlan plan_;
  int position_ = 0;
};

TEST(Allocations, AreCounted) {
  const std::size_t before = allocation_count;
  const auto memory = std::make_unique<int>(3);
  EXPECT_EQ(*memory, 3);
  EXPECT_EQ(allocation_count - before, 1U);
}

struct Case {
  const char* model;
  std::optional<DType> cache{};
};

TEST(Allocations, DoNotHappenInASteadyForwardPass) {
  for (const Case& given : {Case{"llama-gqa-llama3"}, Case{"llama-gqa-llama3", DType::kI8},
                            Case{"deepseek-moe"}, Case{"deepseek-v2-group"}, Case{"deepseek-v3"},
                            Case{"deepseek-v32"}, Case{"deepseek-v4"}}) {
    Decoding decoding(given.model, given.cache);
    decoding.step(8);
    for (int i = 0; i < kWarmSteps; ++i) {
      decoding.step(1);
      decoding.sample();
    }
    std::size_t forward = 0;
    std::size_t sampling = 0;
    for (int i = 0; i < kSteps; ++i) {
      forward += decoding.step(1);
      sampling = std::max(sampling, decoding.sample());
    }
    EXPECT_EQ(forward, 0U) << given.model << " in " << kSteps << " steps";
    // The result that leaves the executor: its slices, the tokens of each, and the callback that
    // shows rows of logits.
    EXPECT_LE(sampling, 2U + kSequences) << given.model;
  }
}

}  // namespace
}  // namespace kun
