// The engine's thread and what it shares with the others. Private to src/engine.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/health_watch.h"
#include "engine/mask_filler.h"

namespace kun {

class Engine::Loop {
 public:
  Loop(EngineOptions options, std::unique_ptr<Executor> executor);
  ~Loop();

  // Any thread.
  std::shared_ptr<TokenStream> generate(GenerateRequest request);
  EngineStats stats() const;
  bool healthy() const;
  void drain();

 private:
  struct Arrival {
    GenerateRequest request;
    std::weak_ptr<TokenStream> stream;
    Microseconds at = 0;
  };
  struct Generation {
    std::weak_ptr<TokenStream> stream;
    int open_choice_count = 0;
    std::vector<bool> open;  // [choice]
    Pooling pooling = Pooling::kNone;
    std::vector<double> pooled;  // sum so far
  };

  // The engine thread only.
  void run();
  void serve();
  bool receive();
  void admit(Arrival arrival);
  void cancel_abandoned();
  void forward_stops();
  void draft();
  void step();
  void deliver(Scheduler::Progress progress, const Status& step_status);
  void publish_stats(std::size_t token_count);
  Status refuse_arrival(const GenerateRequest& request, Refusal& refusal) const;
  void end_all(FinishReason reason, const Status& status);

  Status check(const GenerateRequest& request) const;

  const EngineOptions options_;

  mutable std::mutex inbox_mutex_;
  std::condition_variable inbox_changed_;
  std::vector<Arrival> inbox_;
  std::unordered_map<std::string, int> inbox_counts_;  // by tenant
  bool stopping_ = false;
  bool draining_ = false;
  bool dead_ = false;  // the thread has ended: of itself, or because of stopping_

  mutable std::mutex stats_mutex_;
  EngineStats stats_;

  std::atomic<std::uint64_t> step_count_ = 0;
  std::atomic<Microseconds> admission_time_ = 0;  // while the line is full
  std::atomic<int> pending_count_ = 0;            // requests whose streams have not ended
  mutable HealthWatch watch_;

  // Below: the engine thread only, progress() excepted.
  Scheduler scheduler_;
  std::unique_ptr<Executor> executor_;
  MaskFiller masks_;
  std::unordered_map<SequenceId, Generation> generations_;
  SequenceId next_id_ = 1;
  std::uint64_t generated_token_count_ = 0;
  std::uint64_t corrupted_count_ = 0;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kun
