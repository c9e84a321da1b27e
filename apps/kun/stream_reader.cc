#include "stream_reader.h"

namespace kun {

void StreamWaiter::watch(TokenStream& stream) {
  stream.set_ready_callback([state = state_] {
    const std::lock_guard lock(state->mutex);
    state->ready = true;
    state->changed.notify_one();
  });
}

void StreamWaiter::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [this] { return state_->ready; });
  state_->ready = false;
}

}  // namespace kun
