// Tells a hang from a long step: a hang is work that is pending while nothing at all moves.
#pragma once

#include <cstdint>
#include <mutex>

#include "scheduler/scheduler.h"

namespace kun {

// Thread-safe. Time is an argument, so that tests need not wait.
class HealthWatch {
 public:
  explicit HealthWatch(Microseconds hang_time) : hang_time_(hang_time) {}

  // Work began where there was none, or a step ended: whatever stood still before is forgiven.
  void moved(Microseconds now);

  // `motion` grows while anything gets done. False when it has not since hang_time, though work was
  // pending at both ends of that time.
  bool healthy(bool pending, std::uint64_t motion, Microseconds now);

 private:
  const Microseconds hang_time_;
  std::mutex mutex_;
  std::uint64_t last_motion_ = 0;
  Microseconds moved_at_ = 0;
};

}  // namespace kun
