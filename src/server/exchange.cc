#include "server/exchange.h"

#include <utility>

namespace kun {

void Exchange::respond(HttpResponse response) {
  {
    const std::lock_guard lock(mutex_);
    if (begun_ || closed_) return;
    begun_ = ended_ = true;
    pending_ = std::move(response.body);
    head_ = std::move(response);
  }
  wake_();
}

void Exchange::begin(HttpResponse head) {
  {
    const std::lock_guard lock(mutex_);
    if (begun_ || closed_) return;
    begun_ = streaming_ = true;
    head_ = std::move(head);
  }
  wake_();
}

void Exchange::write(std::string_view bytes) {
  bool was_empty = false;
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || ended_ || bytes.empty()) return;
    was_empty = pending_.empty();
    pending_ += bytes;
  }
  if (was_empty) wake_();
}

void Exchange::end() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || ended_) return;
    ended_ = true;
  }
  wake_();
}

bool Exchange::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::size_t Exchange::pending_bytes() const {
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

void Exchange::set_listener(std::shared_ptr<ExchangeListener> listener) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      listener_ = std::move(listener);
      return;
    }
  }
  listener->on_closed();
}

Exchange::Output Exchange::take() {
  const std::lock_guard lock(mutex_);
  Output output;
  output.head = std::exchange(head_, std::nullopt);
  output.bytes = std::exchange(pending_, {});
  output.streaming = streaming_;
  output.ended = ended_;
  return output;
}

std::shared_ptr<ExchangeListener> Exchange::listener() const {
  const std::lock_guard lock(mutex_);
  return listener_;
}

void Exchange::notify_drained() {
  if (const auto listener = this->listener()) listener->on_drained();
}

void Exchange::notify_idle() {
  if (const auto listener = this->listener()) listener->on_idle();
}

void Exchange::close(bool client_gone) {
  std::shared_ptr<ExchangeListener> listener;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
    listener = std::move(listener_);
    pending_.clear();
    head_.reset();
  }
  if (listener && client_gone) listener->on_closed();
}

}  // namespace kun
