#include "engine/mask_filler.h"

#include <algorithm>

namespace kun {
namespace {

int helper_count(int wanted) {
  if (wanted >= 0) return wanted;
  return std::min(static_cast<int>(std::thread::hardware_concurrency() / 8), 4);
}

}  // namespace

MaskFiller::MaskFiller(int vocabulary_size, int thread_count) : vocabulary_size_(vocabulary_size) {
  for (int i = 0; i < helper_count(thread_count); ++i) {
    threads_.emplace_back([this] { help(); });
  }
}

MaskFiller::~MaskFiller() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskFiller::fill(SamplingBatch& batch) {
  {
    // Helpers that slept through the last round look at the tasks under the lock.
    const std::lock_guard lock(mutex_);
    collect(batch);
    if (task_count_ > 1) ++round_;
  }
  if (task_count_ == 0) return;
  if (task_count_ > 1) changed_.notify_all();
  work();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return busy_count_ == 0; });
  }
  std::size_t task = 0;
  for (SamplingRow& row : batch.rows) {
    if (row.constraint == nullptr) continue;
    if (row.constraint != tasks_[task].constraint) ++task;
    row.mask = tasks_[task].bits;
    row.mask_status = tasks_[task].status;
  }
}

void MaskFiller::collect(const SamplingBatch& batch) {
  task_count_ = 0;
  const TokenConstraint* last = nullptr;
  for (const SamplingRow& row : batch.rows) {
    // The rows of a sequence are neighbours.
    if (row.constraint == nullptr || row.constraint == last) continue;
    if (tasks_.size() == task_count_) tasks_.emplace_back();
    tasks_[task_count_].constraint = row.constraint;
    tasks_[task_count_].end_tokens = row.end_tokens;
    ++task_count_;
    last = row.constraint;
  }
  next_.store(0);
}

void MaskFiller::work() {
  for (std::size_t i = next_.fetch_add(1); i < task_count_; i = next_.fetch_add(1)) {
    compute(tasks_[i]);
  }
}

void MaskFiller::help() {
  std::unique_lock lock(mutex_);
  std::uint64_t seen = round_;
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || round_ != seen; });
    if (stopping_) return;
    seen = round_;
    if (next_.load() >= task_count_) continue;
    ++busy_count_;
    lock.unlock();
    work();
    lock.lock();
    --busy_count_;
    if (busy_count_ == 0) changed_.notify_all();
  }
}

void MaskFiller::compute(Task& task) const {
  task.bits.assign((static_cast<std::size_t>(vocabulary_size_) + 31) / 32, 0);
  task.status = task.constraint->fill_mask(task.bits);
  if (!task.status.ok()) {
    std::ranges::fill(task.bits, 0U);
    return;
  }
  const bool may_end = task.constraint->ending() != TokenConstraint::Ending::kNotYet;
  for (const Token token : task.end_tokens) {
    if (token < 0 || token >= vocabulary_size_) continue;
    const auto index = static_cast<std::size_t>(token);
    const std::uint32_t bit = std::uint32_t{1} << (index % 32);
    std::uint32_t& word = task.bits[index / 32];
    word = may_end ? word | bit : word & ~bit;
  }
}

}  // namespace kun
