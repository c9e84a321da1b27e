// A request that wants texts read and not continued: gives them to the engine, a few at a time, and
// answers when all of them are embeddings. Like a GenerationJob it runs in the text pool whenever
// there is something to take, and lets go of its streams when the client has gone.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/memory_ledger.h"
#include "plan/pooling.h"
#include "plan/refusal.h"
#include "server/exchange.h"
#include "server/server_context.h"

namespace kun {

class PoolingJob : public ExchangeListener, public std::enable_shared_from_this<PoolingJob> {
 public:
  using Embeddings = std::span<const std::vector<float>>;  // [input]

  struct Setup {
    std::shared_ptr<const ServedModel> model;
    std::vector<std::vector<Token>> inputs;
    Pooling pooling = Pooling::kLast;
    std::size_t dimensions = 0;  // 0: all
    bool normalize = true;
    int priority = 0;
    std::string cache_salt;
    Deadlines deadlines;        // from the arrival of the request, for all inputs together
    bool shows_vectors = true;  // in the answer
    // The answer's JSON; `cached_count`: tokens of the inputs that were cached.
    std::function<std::string(Embeddings embeddings, std::int64_t cached_count)> write;
  };

  // Starts the job; the exchange owns it from here on.
  static void start(ServerContext& context, const std::shared_ptr<Exchange>& exchange, Setup setup);

  // `memory`: what the request is expected to need.
  PoolingJob(ServerContext& context, const std::shared_ptr<Exchange>& exchange, Setup setup,
             MemoryHold memory);

  void on_closed() override;
  void on_drained() override {}
  void on_idle() override {}

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void run_locked();
  void submit();
  bool take(std::size_t input);
  void record(std::size_t input, FinishReason reason, const StreamUsage& usage);
  void respond(Exchange& exchange);

  ServerContext& context_;
  const std::weak_ptr<Exchange> exchange_;  // which owns this
  const Setup setup_;
  const Clock::time_point arrived_;
  const MemoryHold memory_;
  // Whether run() waits in the pool's line. Callbacks of streams may outlive the job, so they share
  // it.
  const std::shared_ptr<std::atomic<bool>> scheduled_ = std::make_shared<std::atomic<bool>>(false);

  std::mutex mutex_;
  std::vector<std::shared_ptr<TokenStream>> streams_;  // [input]; null: not begun, or over
  std::vector<std::vector<float>> embeddings_;         // [input]
  std::size_t begun_count_ = 0;
  std::size_t ended_count_ = 0;
  std::int64_t cached_count_ = 0;
  bool done_ = false;
};

}  // namespace kun
