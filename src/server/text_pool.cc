#include "server/text_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"

namespace kun {

TextPool::TextPool(int thread_count, int queue_max)
    : queue_max_(static_cast<std::size_t>(std::max(queue_max, 1))) {
  for (int i = 0; i < std::max(thread_count, 1); ++i) {
    threads_.emplace_back([this] { run(); });
  }
}

TextPool::~TextPool() {
  stop();
}

bool TextPool::try_submit(Task task, std::string_view tenant) {
  constexpr std::size_t kTenantsMax = 8;
  {
    const std::lock_guard lock(mutex_);
    const auto mine = submitted_.find(tenant);
    const std::size_t count = mine == submitted_.end() ? 0 : mine->second.size();
    if (stopping_ || count >= queue_max_ || submitted_count_ >= kTenantsMax * queue_max_) {
      return false;
    }
    std::deque<Task>& line =
        mine == submitted_.end() ? submitted_[std::string(tenant)] : mine->second;
    line.push_back(std::move(task));
    ++submitted_count_;
  }
  changed_.notify_one();
  return true;
}

// Round robin: the first of the tenant whose name comes after the last one's.
TextPool::Task TextPool::take_submitted() {
  auto line = submitted_.upper_bound(last_tenant_);
  if (line == submitted_.end()) line = submitted_.begin();
  Task task = std::move(line->second.front());
  line->second.pop_front();
  --submitted_count_;
  last_tenant_ = line->first;
  if (line->second.empty()) submitted_.erase(line);
  return task;
}

double TextPool::wait_seconds() const {
  const std::lock_guard lock(mutex_);
  return task_seconds_ / static_cast<double>(std::max<std::size_t>(threads_.size(), 1));
}

void TextPool::resume(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    resumed_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void TextPool::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void TextPool::run() {
  for (;;) {
    Task task;
    bool is_new = false;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !resumed_.empty() || !submitted_.empty(); });
      if (resumed_.empty() && submitted_.empty()) return;
      is_new = resumed_.empty();
      if (is_new) {
        task = take_submitted();
      } else {
        task = std::move(resumed_.front());
        resumed_.pop_front();
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    // Our code does not throw, but std containers do when memory is short. Whoever can answer for
    // a task catches that itself; here it must only not end the process.
    try {
      task();
    } catch (const std::exception& exception) {
      LOG(kError, fmt::format("a piece of work for a request was given up: {}", exception.what()));
    }
    if (!is_new) continue;
    constexpr double kDecay = 0.9;
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::lock_guard lock(mutex_);
    task_seconds_ =
        task_seconds_ == 0.0 ? took.count() : kDecay * task_seconds_ + (1 - kDecay) * took.count();
  }
}

}  // namespace kun
