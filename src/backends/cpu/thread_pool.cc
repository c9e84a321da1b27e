#include "backends/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include "base/check.h"

namespace kun {
namespace {

constexpr std::uint32_t kInsideMask = 0xFFFU;
constexpr std::uint32_t kOpen = 0x1000U;
constexpr std::uint32_t kGenerationStep = 0x2000U;
constexpr int kThreadsMax = 1024;

// About 50 microseconds: longer than the serial work between two loops of a model's step, short
// enough that an idle pool leaves the processor to others.
constexpr int kSpinsBeforeSleep = 2000;
constexpr int kSpinsBetweenYields = 256;

std::uint32_t generation(std::uint32_t state) {
  return state / kGenerationStep;
}

void pause_briefly(int spin) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // "yield" does nothing where a core has one thread
#endif
  if (spin % kSpinsBetweenYields == kSpinsBetweenYields - 1) sched_yield();
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  // A refusal (a container that forbids it, a processor taken offline) costs only speed.
  (void)pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
}

}  // namespace

ThreadPool::ThreadPool(int thread_count, std::span<const int> pinned_cpus, int node_count)
    : stretches_(thread_count, node_count), lanes_(static_cast<std::size_t>(thread_count)) {
  CHECK(thread_count >= 1 && thread_count <= kThreadsMax);
  CHECK(pinned_cpus.empty() || pinned_cpus.size() == lanes_.size());
  for (int worker = 1; worker < thread_count; ++worker) {
    const int cpu = pinned_cpus.empty() ? -1 : pinned_cpus[static_cast<std::size_t>(worker)];
    workers_.emplace_back([this, worker, cpu] {
      if (cpu >= 0) pin_to(cpu);
      serve(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  state_.fetch_add(kGenerationStep);
  state_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

std::uint64_t ThreadPool::progress() const {
  std::uint64_t sum = 0;
  for (const Lane& lane : lanes_) sum += lane.finished.load(std::memory_order_relaxed);
  return sum;
}

void ThreadPool::run_job(std::int64_t tile_count, const void* context, Function function) {
  if (tile_count <= 0) return;
  if (workers_.empty() || tile_count == 1) {
    std::atomic<std::uint64_t>& finished = lanes_[0].finished;
    for (std::int64_t tile = 0; tile < tile_count; ++tile) {
      function(context, tile, 0);
      finished.store(finished.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    }
    return;
  }
  const std::uint32_t before = state_.load(std::memory_order_relaxed);
  CHECK((before & (kOpen | kInsideMask)) == 0);  // run() is not reentrant
  function_ = function;
  context_ = context;
  tile_count_ = tile_count;
  for (int stretch = 0; stretch < stretches_.count(); ++stretch) {
    lanes_[static_cast<std::size_t>(stretch)].next_tile.store(stretches_.begin(stretch, tile_count),
                                                              std::memory_order_relaxed);
  }
  // Sequentially consistent with the sleeper's own pair of accesses: either it sees the new state
  // or we see it sleeping.
  state_.store((before + kGenerationStep) | kOpen);
  if (sleeping_.load() > 0) state_.notify_all();
  work(0);
  state_.fetch_and(~kOpen);
  wait_for_workers();
}

void ThreadPool::work(int worker) {
  for (int i = 0; i < stretches_.count(); ++i) work_through(stretches_.visited(worker, i), worker);
}

void ThreadPool::work_through(int stretch, int worker) {
  std::atomic<std::int64_t>& next = lanes_[static_cast<std::size_t>(stretch)].next_tile;
  std::atomic<std::uint64_t>& finished = lanes_[static_cast<std::size_t>(worker)].finished;
  const std::int64_t end = stretches_.begin(stretch + 1, tile_count_);
  // Looked at first, so that helpers do not drive a finished counter on.
  while (next.load(std::memory_order_relaxed) < end) {
    const std::int64_t tile = next.fetch_add(1, std::memory_order_relaxed);
    if (tile >= end) return;
    function_(context_, tile, worker);
    finished.store(finished.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
}

void ThreadPool::wait_for_workers() {
  for (int spin = 0; spin < kSpinsBeforeSleep; ++spin) {
    if ((state_.load(std::memory_order_acquire) & kInsideMask) == 0) return;
    pause_briefly(spin);
  }
  caller_sleeps_.store(true);
  for (std::uint32_t state = state_.load(); (state & kInsideMask) != 0; state = state_.load()) {
    state_.wait(state);
  }
  caller_sleeps_.store(false);
}

void ThreadPool::serve(int worker) {
  std::uint32_t last = generation(state_.load());
  // A job posted before this thread's first look must not be taken for an old one.
  if ((state_.load() & kOpen) != 0) last = ~0U;
  while (join_next_job(&last)) {
    work(worker);
    leave_job();
  }
}

bool ThreadPool::join_next_job(std::uint32_t* last) {
  for (int spin = 0;; ++spin) {
    std::uint32_t state = state_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_relaxed)) return false;
    if ((state & kOpen) != 0 && generation(state) != *last) {
      // Another thread's join or leave makes this fail: then look again.
      if (state_.compare_exchange_strong(state, state + 1, std::memory_order_acq_rel)) {
        *last = generation(state);
        return true;
      }
      continue;
    }
    if (spin < kSpinsBeforeSleep) {
      pause_briefly(spin);
      continue;
    }
    sleeping_.fetch_add(1);
    state = state_.load();
    const bool news = (state & kOpen) != 0 && generation(state) != *last;
    if (!news && !stopping_.load()) state_.wait(state);
    sleeping_.fetch_sub(1);
    spin = 0;
  }
}

void ThreadPool::leave_job() {
  const std::uint32_t before = state_.fetch_sub(1, std::memory_order_seq_cst);
  if ((before & (kInsideMask | kOpen)) == 1 && caller_sleeps_.load()) state_.notify_all();
}

}  // namespace kun
