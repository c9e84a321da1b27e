// One worker in this process, on a thread of its own, so that the engine can plan and take in
// requests while a step runs.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "executor/drafter.h"
#include "executor/executor.h"
#include "executor/worker.h"

namespace kun {

// submit, supply and wait are the engine thread's, in this order for each step.
class LocalExecutor final : public Executor {
 public:
  // `drafter` may be null: nobody drafts.
  explicit LocalExecutor(std::unique_ptr<Worker> worker, std::unique_ptr<Drafter> drafter = {});
  ~LocalExecutor() override;  // waits for the step in progress

  void submit(const BatchPlan& plan) override;
  void supply(const SamplingBatch& sampling) override;
  StepResult wait() override;
  std::vector<std::vector<Token>> propose(std::span<const DraftWish> wishes) override;
  std::uint64_t progress() const override { return worker_->progress(); }

 private:
  void run();
  StepResult run_step(const BatchPlan& plan);
  StepResult compute(const BatchPlan& plan);
  const SamplingBatch* wait_for_sampling();

  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Drafter> drafter_;  // the engine thread's, between steps

  std::mutex mutex_;
  std::condition_variable changed_;
  const BatchPlan* plan_ = nullptr;
  const SamplingBatch* sampling_ = nullptr;
  std::optional<StepResult> result_;
  bool stopping_ = false;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kun
