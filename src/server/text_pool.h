// The threads that turn JSON into requests and tokens into text. New requests wait in a bounded
// line and are refused when it is full; work for requests already admitted is never refused, and
// is bounded because each of them has at most one piece of work waiting at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kun {

// Thread-safe.
class TextPool {
 public:
  using Task = std::function<void()>;

  TextPool(int thread_count, int queue_max);
  ~TextPool();

  // Work for a new request. False when the line is full or the pool has stopped.
  bool try_submit(Task task);

  // Work for a request in progress; goes before new ones. Dropped after stop().
  void resume(Task task);

  // Finishes what is waiting, then ends the threads. Idempotent.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> resumed_;
  std::deque<Task> submitted_;
  const std::size_t queue_max_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kun
