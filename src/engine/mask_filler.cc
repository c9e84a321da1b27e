#include "engine/mask_filler.h"

#include <algorithm>
#include <chrono>
#include <memory>

namespace kun {
namespace {

int helper_count(int wanted) {
  if (wanted >= 0) return wanted;
  return std::min(static_cast<int>(std::thread::hardware_concurrency() / 8), 4);
}

}  // namespace

MaskFiller::MaskFiller(int vocabulary_size, int thread_count, std::chrono::milliseconds ahead_time)
    : vocabulary_size_(vocabulary_size), ahead_time_(ahead_time) {
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
  std::size_t place = 0;  // behind so many drafts
  for (SamplingRow& row : batch.rows) {
    if (row.constraint == nullptr) continue;
    if (row.constraint != tasks_[task].constraint) {
      ++task;
      place = 0;
    }
    const Mask& mask = tasks_[task].masks[place];
    row.mask = mask.bits;
    row.mask_status = mask.status;
    if (row.draft != kNoDraft) ++place;
  }
}

void MaskFiller::collect(const SamplingBatch& batch) {
  task_count_ = 0;
  const TokenConstraint* last = nullptr;
  for (const SamplingRow& row : batch.rows) {
    if (row.constraint == nullptr) continue;
    // The rows of a sequence are neighbours.
    if (row.constraint != last) {
      if (tasks_.size() == task_count_) tasks_.emplace_back();
      Task& task = tasks_[task_count_++];
      task.constraint = row.constraint;
      task.end_tokens = row.end_tokens;
      task.drafts.clear();
      last = row.constraint;
    }
    if (row.draft != kNoDraft) tasks_[task_count_ - 1].drafts.push_back(row.draft);
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

// A copy takes the drafts in, as far as they go: what breaks it may never be said.
void MaskFiller::compute(Task& task) const {
  const std::size_t count = task.drafts.size() + 1;
  if (task.masks.size() < count) task.masks.resize(count);
  const auto start = std::chrono::steady_clock::now();
  compute(*task.constraint, task.end_tokens, task.masks.front());
  std::unique_ptr<TokenConstraint> ahead;
  std::size_t taken = 0;
  for (; taken < task.drafts.size(); ++taken) {
    const Token draft = task.drafts[taken];
    const bool ends = std::ranges::find(task.end_tokens, draft) != task.end_tokens.end();
    if (ends || !allows(task.masks[taken], draft)) break;
    if (std::chrono::steady_clock::now() - start > ahead_time_) break;
    if (ahead == nullptr) ahead = task.constraint->clone();
    if (!ahead->advance(draft).ok()) break;
    compute(*ahead, task.end_tokens, task.masks[taken + 1]);
  }
  for (std::size_t i = taken + 1; i < count; ++i) {
    task.masks[i].bits.assign(task.masks.front().bits.size(), 0);
    task.masks[i].status = {};
  }
}

bool MaskFiller::allows(const Mask& mask, Token token) {
  const auto index = static_cast<std::size_t>(token);
  if (token < 0 || index / 32 >= mask.bits.size()) return false;
  return ((mask.bits[index / 32] >> (index % 32)) & 1U) != 0;
}

void MaskFiller::compute(TokenConstraint& constraint, std::span<const Token> end_tokens,
                         Mask& mask) const {
  mask.bits.assign((static_cast<std::size_t>(vocabulary_size_) + 31) / 32, 0);
  mask.status = constraint.fill_mask(mask.bits);
  if (!mask.status.ok()) {
    std::ranges::fill(mask.bits, 0U);
    return;
  }
  const bool may_end = constraint.ending() != TokenConstraint::Ending::kNotYet;
  for (const Token token : end_tokens) {
    if (token < 0 || token >= vocabulary_size_) continue;
    const auto index = static_cast<std::size_t>(token);
    const std::uint32_t bit = std::uint32_t{1} << (index % 32);
    std::uint32_t& word = mask.bits[index / 32];
    word = may_end ? word | bit : word & ~bit;
  }
}

}  // namespace kun
