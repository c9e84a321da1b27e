#include "server/text_pool.h"

#include <algorithm>
#include <utility>

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

bool TextPool::try_submit(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || submitted_.size() >= queue_max_) return false;
    submitted_.push_back(std::move(task));
  }
  changed_.notify_one();
  return true;
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
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || !resumed_.empty() || !submitted_.empty(); });
      std::deque<Task>& line = resumed_.empty() ? submitted_ : resumed_;
      if (line.empty()) return;
      task = std::move(line.front());
      line.pop_front();
    }
    task();
  }
}

}  // namespace kun
