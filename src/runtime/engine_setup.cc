#include "runtime/engine_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "executor/draft_model.h"
#include "executor/local_executor.h"
#include "executor/memory_budget.h"
#include "executor/self_drafter.h"

namespace kun {
namespace {

// Prompt tokens that join running streams in any case: fewer would waste what reading the weights
// once for all of them saves.
constexpr int kTokensPerStepMin = 8;

// Tokens that the cache holds: of groups whose blocks pass on only if their room bounds a sequence.
std::int64_t token_capacity(const KvLayout& layout, const std::vector<int>& block_counts) {
  std::int64_t tokens = std::numeric_limits<std::int64_t>::max();
  std::int64_t passing = 0;
  for (std::size_t i = 0; i < layout.groups.size(); ++i) {
    tokens = std::min(tokens, layout.groups[i].token_capacity(block_counts[i]));
    passing = std::max(passing, std::int64_t{block_counts[i]} * layout.groups[i].tokens_per_block);
  }
  return std::min(tokens, passing);
}

std::int64_t cache_bytes(const KvLayout& layout, const std::vector<int>& block_counts) {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < layout.groups.size(); ++i) {
    bytes += block_counts[i] * layout.groups[i].block_bytes();
  }
  return bytes;
}

// What the KV pool may take: what the operator said, or a share of what is free; and never more
// than as many full contexts as may run at once could use.
Result<std::int64_t> cache_budget(const KvLayout& layout, const EngineSettings& settings,
                                  int context_length) {
  const Result<MemoryBudget> memory = read_memory_budget();
  if (settings.kv_cache_bytes > 0) {
    if (memory && settings.kv_cache_bytes > memory->available_bytes) {
      LOG(kWarning, fmt::format("a KV cache of {} MiB is more than the {} MiB that are free: the "
                                "system may end the process when it fills",
                                settings.kv_cache_bytes >> 20, memory->available_bytes >> 20));
    }
    return settings.kv_cache_bytes;
  }
  if (!memory) return memory.error();
  const auto share = static_cast<std::int64_t>(static_cast<double>(memory->available_bytes) *
                                               settings.memory_share);
  std::int64_t block_length = 1;
  for (const KvGroup& group : layout.groups) {
    block_length = std::max<std::int64_t>(block_length, group.tokens_per_block);
  }
  const std::int64_t tokens =
      std::min<std::int64_t>((context_length + 2 * block_length) * settings.sequences_running_max,
                             std::numeric_limits<std::int32_t>::max());
  const std::int64_t useful =
      cache_bytes(layout, block_counts_of(layout, tokens, settings.tokens_per_step_max));
  const std::int64_t most = std::min(share, useful);
  return settings.kv_cache_bytes_max > 0 ? std::min(most, settings.kv_cache_bytes_max) : most;
}

std::uint64_t random_word() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U) | device();
}

Result<std::function<void(std::string_view)>> open_trace(const std::string& path) {
  auto file = std::make_shared<std::ofstream>(path, std::ios::binary);
  if (!*file) return invalid_argument(fmt::format("cannot write the trace to {}", path));
  return std::function<void(std::string_view)>(
      [file](std::string_view line) { *file << line << std::endl; });
}

// The part of `budget` that a draft model's cache takes, so that both caches hold as many tokens.
std::int64_t draft_cache_bytes(const ModelBundle& target, const Speculator& speculator,
                               std::int64_t budget) {
  if (speculator.draft == nullptr) return 0;
  const double draft = speculator.draft->model->kv_layout().token_bytes();
  const double both = draft + target.model->kv_layout().token_bytes();
  return static_cast<std::int64_t>(static_cast<double>(budget) * draft / both);
}

Result<std::unique_ptr<Drafter>> make_draft_model(const std::shared_ptr<const ModelBundle>& bundle,
                                                  Ops& ops, int vocabulary_limit,
                                                  std::int64_t cache_bytes) {
  // Shares the whole bundle's life: weights may lie in its files.
  const std::shared_ptr<const Model> model(bundle, bundle->model.get());
  DraftModelOptions options;
  options.worker.block_counts = block_count_for(model->kv_layout(), cache_bytes);
  options.worker.vocabulary_limit = vocabulary_limit;
  options.context_length_max = model->context_length_max();
  options.label_key[0] = random_word();
  options.label_key[1] = random_word();
  ASSIGN_OR_RETURN(auto drafter, DraftModel::create(model, ops, options));
  return std::unique_ptr<Drafter>(std::move(drafter));
}

Status check_can_take_back(const ModelBundle& bundle) {
  if (bundle.model->kv_layout().can_take_back()) return {};
  return invalid_argument(fmt::format(
      "--speculative-config: the cache of {} keeps running states, from which wrong drafts cannot "
      "be taken back; serve it without",
      bundle.name));
}

Result<std::unique_ptr<Drafter>> make_self_drafter(const ModelBundle& bundle, Worker& worker) {
  if (bundle.model->guess_group() < 0) {
    return invalid_argument(fmt::format(
        "--speculative-config: {} was loaded without its next-token module (MTP)", bundle.name));
  }
  ASSIGN_OR_RETURN(auto drafter, SelfDrafter::create(worker));
  return std::unique_ptr<Drafter>(std::move(drafter));
}

// For the engine around `worker`.
Result<std::unique_ptr<Drafter>> make_drafter(const ModelBundle& target, Ops& ops,
                                              const Speculator& speculator,
                                              std::int64_t cache_bytes, Worker& worker) {
  if (speculator.config.method != DraftMethod::kNone) {
    RETURN_IF_ERROR(check_can_take_back(target));
    if (speculator.draft != nullptr) RETURN_IF_ERROR(check_can_take_back(*speculator.draft));
  }
  const int limit =
      target.vocabulary_limit > 0 ? target.vocabulary_limit : target.model->vocabulary_size();
  switch (speculator.config.method) {
    case DraftMethod::kNone: break;
    case DraftMethod::kNgram:
      return std::unique_ptr<Drafter>(std::make_unique<NgramDrafter>(speculator.config.ngram));
    case DraftMethod::kRandom:
      return std::unique_ptr<Drafter>(std::make_unique<RandomDrafter>(limit));
    case DraftMethod::kDraftModel:
      return make_draft_model(speculator.draft, ops, limit, cache_bytes);
    case DraftMethod::kMtp: return make_self_drafter(target, worker);
  }
  return std::unique_ptr<Drafter>();
}

}  // namespace

Result<EngineSetup> make_engine(const ModelBundle& bundle, Ops& ops,
                                const EngineSettings& settings) {
  const KvLayout& layout = bundle.model->kv_layout();
  EngineSetup setup;
  setup.context_length = settings.context_length_max > 0 ? settings.context_length_max
                                                         : bundle.model->context_length_max();
  ASSIGN_OR_RETURN(const std::int64_t budget, cache_budget(layout, settings, setup.context_length));
  const std::int64_t draft_bytes = draft_cache_bytes(bundle, settings.speculator, budget);
  const std::vector<int> block_counts =
      block_count_for(layout, budget - draft_bytes, settings.tokens_per_step_max);
  setup.kv_token_capacity = token_capacity(layout, block_counts);
  setup.kv_cache_bytes = cache_bytes(layout, block_counts);
  if (setup.kv_token_capacity == 0) {
    return resource_exhausted(fmt::format(
        "{} bytes hold no KV cache; give --kv-cache-memory-bytes or free some memory", budget));
  }
  setup.context_length =
      static_cast<int>(std::min<std::int64_t>(setup.context_length, setup.kv_token_capacity));

  WorkerOptions worker_options;
  worker_options.block_counts = block_counts;
  worker_options.vocabulary_limit = bundle.vocabulary_limit;
  if (settings.speculator.config.method == DraftMethod::kMtp) {
    worker_options.guess_block_count = SelfDrafter::kGuessBlockCount;
  }
  ASSIGN_OR_RETURN(auto worker, Worker::create(bundle.model, ops, worker_options));

  EngineOptions options;
  options.limits.tokens_per_step_max = settings.tokens_per_step_max;
  options.limits.tokens_per_step_min = std::min(kTokensPerStepMin, settings.tokens_per_step_max);
  options.limits.step_time_target = settings.step_time_target_us;
  options.limits.decode_slowdown_max = settings.decode_slowdown_max;
  options.limits.sequences_running_max = settings.sequences_running_max;
  options.limits.sequences_waiting_max = settings.sequences_waiting_max;
  options.limits.context_length_max = setup.context_length;
  options.limits.block_counts = block_counts;
  options.limits.prefix_caching = settings.prefix_caching;
  options.limits.draft_count_max = settings.speculator.config.draft_count_max;
  options.limits.draft_sequences_max = settings.speculator.config.draft_sequences_max;
  options.limits.adaptive_drafts = settings.speculator.config.adaptive;
  options.limits.label_key[0] = random_word();
  options.limits.label_key[1] = random_word();
  options.layout = layout;
  options.vocabulary_size = bundle.model->vocabulary_size();
  if (!settings.trace_path.empty()) {
    ASSIGN_OR_RETURN(options.plan_trace, open_trace(settings.trace_path));
  }
  ASSIGN_OR_RETURN(auto drafter,
                   make_drafter(bundle, ops, settings.speculator, draft_bytes, *worker));
  setup.engine = std::make_unique<Engine>(
      std::move(options), std::make_unique<LocalExecutor>(std::move(worker), std::move(drafter)));
  return setup;
}

Result<std::unique_ptr<Worker>> make_text_worker(const ModelBundle& bundle, Ops& ops,
                                                 std::int64_t token_count) {
  WorkerOptions options;
  options.vocabulary_limit = bundle.vocabulary_limit;
  for (const KvGroup& group : bundle.model->kv_layout().groups) {
    options.block_counts.push_back(
        static_cast<int>((token_count + group.tokens_per_block - 1) / group.tokens_per_block));
  }
  return Worker::create(bundle.model, ops, std::move(options));
}

}  // namespace kun
