#include "engine/health_watch.h"

namespace kun {

void HealthWatch::moved(Microseconds now) {
  const std::lock_guard lock(mutex_);
  moved_at_ = now;
}

bool HealthWatch::healthy(bool pending, std::uint64_t motion, Microseconds now) {
  const std::lock_guard lock(mutex_);
  if (!pending || motion != last_motion_) {
    last_motion_ = motion;
    moved_at_ = now;
  }
  return now - moved_at_ < hang_time_;
}

}  // namespace kun
