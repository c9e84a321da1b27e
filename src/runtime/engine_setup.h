// From a loaded model to something that generates: the size of the cache, the worker, the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "device/ops.h"
#include "engine/engine.h"
#include "executor/worker.h"
#include "runtime/model_bundle.h"
#include "runtime/speculative_config.h"

namespace kun {

struct EngineSettings {
  std::int64_t kv_cache_bytes = 0;      // 0: memory_share of what is free
  double memory_share = 0.5;            // of free memory, for the KV cache
  std::int64_t kv_cache_bytes_max = 0;  // of that share; 0: no other bound
  int context_length_max = 0;           // 0: the model's own
  int sequences_running_max = 256;
  int sequences_waiting_max = 1024;
  int tokens_per_step_max = 2048;
  std::int64_t step_time_target_us = 0;  // see SchedulerLimits; 0: decode_slowdown_max decides
  double decode_slowdown_max = 2.0;
  bool prefix_caching = true;
  std::string trace_path{};  // empty: no trace
  Speculator speculator{};
};

struct EngineSetup {
  std::unique_ptr<Engine> engine;
  int context_length = 0;  // what a request may use, prompt and output together
  std::int64_t kv_cache_bytes = 0;
  std::int64_t kv_token_capacity = 0;
};

Result<EngineSetup> make_engine(const ModelBundle& bundle, Ops& ops,
                                const EngineSettings& settings);

// A worker for one text of `token_count` tokens and nothing else.
Result<std::unique_ptr<Worker>> make_text_worker(const ModelBundle& bundle, Ops& ops,
                                                 std::int64_t token_count);

}  // namespace kun
