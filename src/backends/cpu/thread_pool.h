// A fixed set of threads that share one parallel loop at a time. Each starts in a stretch of tiles
// of its own, so that it reads memory in order, and then helps where tiles are left, so that a
// disturbed core holds nobody; and the caller never waits for a worker that has not joined yet, so
// a machine with more threads than cores slows down without collapsing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "backends/cpu/stretches.h"

namespace kun {

// Workers sleep when idle for longer than a short spin. One thread at a time may call run().
class ThreadPool {
 public:
  // `thread_count` >= 1 includes the calling thread. With `pinned_cpus` (one per thread), worker i
  // stays on pinned_cpus[i]; the caller's own placement is left alone. Threads are numbered node by
  // node, equally many on each of `node_count`.
  explicit ThreadPool(int thread_count, std::span<const int> pinned_cpus = {}, int node_count = 1);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(lanes_.size()); }
  int node_count() const { return stretches_.node_count(); }

  // Calls body(tile, worker) for every tile in [0, tile_count), worker in [0, thread_count), and
  // returns when all are done. A single tile runs on the caller without waking anybody.
  template <class Body>
  void run(std::int64_t tile_count, const Body& body) {
    run_job(tile_count, &body, [](const void* context, std::int64_t tile, int worker) {
      (*static_cast<const Body*>(context))(tile, worker);
    });
  }

  // Tiles finished since the pool started. Any thread may ask.
  std::uint64_t progress() const;

 private:
  using Function = void (*)(const void* context, std::int64_t tile, int worker);

  // What threads write for each other lies so far apart: x86-64 fetches lines of 64 bytes in pairs,
  // and the last-level lines of a Kunpeng 920 have 128.
  static constexpr std::size_t kApart = 128;

  // Per thread; the tile counters of the first lanes are those of the stretches.
  struct alignas(kApart) Lane {
    std::atomic<std::uint64_t> finished{0};
    std::atomic<std::int64_t> next_tile{0};
  };

  void run_job(std::int64_t tile_count, const void* context, Function function);
  void work(int worker);
  void work_through(int stretch, int worker);
  void serve(int worker);
  bool join_next_job(std::uint32_t* last);
  void leave_job();
  void wait_for_workers();

  // What the current job is; written by the caller while no worker is inside.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  std::int64_t tile_count_ = 0;
  const Stretches stretches_;

  // [generation | open | workers inside]: joining is one compare-exchange on it.
  alignas(kApart) std::atomic<std::uint32_t> state_{0};
  alignas(kApart) std::atomic<int> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};

  std::vector<Lane> lanes_;
  std::vector<std::thread> workers_;
};

}  // namespace kun
