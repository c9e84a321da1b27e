#include "memory_plan.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>

#include "base/log.h"
#include "models/registry.h"
#include "server/memory_budget_split.h"

namespace kun {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// With less than this a server refuses nearly everything.
constexpr std::int64_t kRequestsMin = 32 * kMiB;

// Stacks, buffers of libraries, and what the heap keeps for itself.
constexpr std::int64_t kProgramBytes = 24 * kMiB;

double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}

// Bytes of activations per token and hidden unit: the widest moment of a layer is its MLP with both
// halves of the gate, some twelve times as wide as the hidden state, in F32 and quantized.
constexpr std::int64_t kStepBytesPerUnit = 96;

std::int64_t step_bytes(const ModelBundle& bundle, const EngineSettings& settings) {
  const std::int64_t vocabulary = bundle.model->vocabulary_size();
  const std::int64_t rows = settings.sequences_running_max;
  const std::int64_t logits = std::min<std::int64_t>(2 * rows * vocabulary * 4, 256 * kMiB);
  const std::int64_t grammar_vocabulary = vocabulary * 256;
  const std::int64_t activations =
      std::int64_t{settings.tokens_per_step_max} * bundle.model->hidden_size() * kStepBytesPerUnit;
  return activations + logits + grammar_vocabulary;
}

}  // namespace

void prepare_memory(std::int64_t budget_bytes, MemoryLedger& ledger) {
  // Large pieces go back to the system when they are freed, and small ones lie in few places.
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
  ::mallopt(M_ARENA_MAX, 2);
  ledger.set_limits(static_cast<std::size_t>(std::min(kRequestsMin, budget_bytes / 8)), 0);
}

Result<MemoryPlan> plan_memory(std::int64_t budget_bytes, const ModelBundle& bundle, Device& device,
                               EngineSettings& settings) {
  MemoryPlan plan;
  plan.budget_bytes = budget_bytes;
  plan.weights_bytes = static_cast<std::int64_t>(resident_bytes());
  if (bundle.checkpoint != nullptr) {
    ASSIGN_OR_RETURN(const WeightPlan weights,
                     plan_weights(*bundle.checkpoint, device.ops(), device.cache_dtype()));
    plan.weights_bytes = std::max(plan.weights_bytes, weights.packed_bytes + weights.table_bytes);
  }
  plan.weights_bytes += kProgramBytes;
  plan.step_bytes = step_bytes(bundle, settings);
  const std::int64_t left = budget_bytes - plan.weights_bytes - plan.step_bytes;
  plan.cache_bytes = settings.kv_cache_bytes > 0 ? settings.kv_cache_bytes : left * 3 / 4;
  if (left - plan.cache_bytes < kRequestsMin || plan.cache_bytes <= 0) {
    return resource_exhausted(
        fmt::format("--memory-budget of {:.0f} MiB does not hold the weights ({:.0f} MiB), a step "
                    "({:.0f} MiB), "
                    "the KV cache ({:.0f} MiB) and {:.0f} MiB for requests; give more, or less to "
                    "--kv-cache-memory-bytes or --max-num-batched-tokens",
                    mib(budget_bytes), mib(plan.weights_bytes), mib(plan.step_bytes),
                    mib(std::max<std::int64_t>(plan.cache_bytes, 0)), mib(kRequestsMin)));
  }
  settings.kv_cache_bytes_max = plan.cache_bytes;
  return plan;
}

void share_memory(const MemoryPlan& plan, MemoryLedger& ledger) {
  const std::int64_t left =
      plan.budget_bytes - plan.weights_bytes - plan.step_bytes - plan.cache_bytes;
  const MemorySplit split = split_budget(static_cast<std::size_t>(left));
  // A little below: what is being taken this moment is not resident yet.
  const std::int64_t process = plan.budget_bytes - left / 8;
  ledger.set_limits(split.limit_bytes, static_cast<std::size_t>(process));
  LOG(kInfo,
      fmt::format("memory budget {:.0f} MiB: weights {:.0f}, a step {:.0f}, KV cache {:.0f}, "
                  "requests {:.0f} and as much kept free",
                  mib(plan.budget_bytes), mib(plan.weights_bytes), mib(plan.step_bytes),
                  mib(plan.cache_bytes), mib(static_cast<std::int64_t>(split.limit_bytes))));
}

}  // namespace kun
