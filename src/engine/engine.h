// Engine is the whole of what a server, a script or a Python binding may know: tokens in, tokens
// out. One thread runs the loop and owns scheduler and executor outright, which is why neither has
// a lock; other threads reach it only through the inbox and the token streams.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "engine/generator.h"
#include "executor/executor.h"
#include "scheduler/scheduler.h"

namespace kun {

struct EngineOptions {
  SchedulerLimits limits;
  KvLayout layout;
  int vocabulary_size = 0;  // prompts with other ids are refused

  // When work is pending and nothing has moved for this long, the engine is not healthy.
  Microseconds hang_time = 5'000'000;

  // Monotonic; called by any thread. Empty: the machine's steady clock.
  std::function<Microseconds()> clock;

  // Threads beside the engine's own that compute masks of constraints. -1: as suits the machine.
  int mask_thread_count = -1;

  // Receives the lines of scheduler/plan_trace.h, a header and one for each step, without line
  // ends; called by the engine thread. Empty: no trace.
  std::function<void(std::string_view)> plan_trace;
};

// Thread-safe. Destruction waits for the step in progress and ends every stream as kAbort.
class Engine final : public Generator {
 public:
  Engine(EngineOptions options, std::unique_ptr<Executor> executor);
  ~Engine() override;

  std::shared_ptr<TokenStream> generate(GenerateRequest request) override;
  EngineStats stats() const override;
  bool healthy() const override;
  void drain() override;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace kun
