#include "executor/local_executor.h"

#include <fmt/core.h>

#include <exception>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace kun {

LocalExecutor::LocalExecutor(std::unique_ptr<Worker> worker, std::unique_ptr<Drafter> drafter)
    : worker_(std::move(worker)), drafter_(std::move(drafter)), thread_([this] { run(); }) {}

LocalExecutor::~LocalExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LocalExecutor::submit(const BatchPlan& plan) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(plan_ == nullptr && !result_.has_value());
    plan_ = &plan;
  }
  changed_.notify_all();
}

void LocalExecutor::supply(const SamplingBatch& sampling) {
  {
    const std::lock_guard lock(mutex_);
    CHECK(plan_ != nullptr && sampling_ == nullptr);
    sampling_ = &sampling;
  }
  changed_.notify_all();
}

StepResult LocalExecutor::wait() {
  std::unique_lock lock(mutex_);
  CHECK(plan_ != nullptr && sampling_ != nullptr);
  changed_.wait(lock, [this] { return result_.has_value(); });
  plan_ = nullptr;
  sampling_ = nullptr;
  return *std::exchange(result_, std::nullopt);
}

// A drafter that fails costs speed, not the step: it is let go, and the rest is said without it.
std::vector<std::vector<Token>> LocalExecutor::propose(std::span<const DraftWish> wishes) {
  std::vector<std::vector<Token>> drafts(wishes.size());
  if (drafter_ == nullptr) return drafts;
  Status status;
  try {
    status = drafter_->propose(wishes, drafts);
  } catch (const std::exception& exception) {
    status = internal_error(exception.what());
  }
  if (status.ok()) return drafts;
  LOG(kError, fmt::format("speculative decoding is off from now on: {}", status.message()));
  drafter_.reset();
  return std::vector<std::vector<Token>>(wishes.size());
}

void LocalExecutor::run() {
  while (true) {
    const BatchPlan* plan = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock,
                    [this] { return stopping_ || (plan_ != nullptr && !result_.has_value()); });
      if (stopping_) return;
      plan = plan_;
    }
    StepResult result = run_step(*plan);
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      result_ = std::move(result);
    }
    changed_.notify_all();
  }
}

// Our code does not throw, but std containers do when memory is short, and so may a backend's
// library: that costs the step, not the process.
StepResult LocalExecutor::run_step(const BatchPlan& plan) {
  StepResult result;
  try {
    result = compute(plan);
  } catch (const std::exception& exception) {
    result.status = internal_error(fmt::format("a step failed: {}", exception.what()));
  } catch (...) {
    result.status = internal_error("a step failed for an unknown reason");
  }
  result.step = plan.step;
  return result;
}

StepResult LocalExecutor::compute(const BatchPlan& plan) {
  StepResult result;
  result.status = worker_->forward(plan);
  if (!result.status.ok()) return result;
  const SamplingBatch* sampling = wait_for_sampling();
  if (sampling != nullptr) return worker_->sample(plan, *sampling);
  result.status = cancelled("the executor is shutting down");
  return result;
}

// nullptr when the executor is being destroyed.
const SamplingBatch* LocalExecutor::wait_for_sampling() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_ || sampling_ != nullptr; });
  return sampling_;
}

}  // namespace kun
