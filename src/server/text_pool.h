// The threads that turn JSON into requests and tokens into text. New requests wait in a bounded
// line and are refused when it is full; work for requests already admitted is never refused, and
// is bounded because each of them has at most one piece of work waiting at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kun {

// Thread-safe.
class TextPool {
 public:
  using Task = std::function<void()>;

  TextPool(int thread_count, int queue_max);
  ~TextPool();

  // Work for a new request. Tenants take turns. False when the tenant's line is full, all lines
  // together are far too long, or the pool has stopped.
  bool try_submit(Task task, std::string_view tenant = {});

  // How long a line that is full takes, by what tasks took so far; 0: not known.
  double wait_seconds() const;

  // Work for a request in progress; goes before new ones. Dropped after stop().
  void resume(Task task);

  // Finishes what is waiting, then ends the threads. Idempotent.
  void stop();

 private:
  void run();

  Task take_submitted();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> resumed_;
  std::map<std::string, std::deque<Task>, std::less<>> submitted_;  // by tenant; none is empty
  std::string last_tenant_;                                         // whose turn it was
  std::size_t submitted_count_ = 0;
  double task_seconds_ = 0.0;  // mean of new requests' tasks, later ones weighing more
  const std::size_t queue_max_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace kun
