// Unread events of a choice are merged into one, so a slow reader costs memory for its tokens only,
// and the end of a choice is rewritten here when the reader found a stop string first: whichever of
// the two the engine notices first, the reader sees the same end.
#include "engine/token_stream.h"

#include <algorithm>
#include <utility>

namespace kun {
namespace {

// Makes `event` the end, or a part of it, that the reader asked for with finish().
void drop_output_after_stop(StreamEvent& event, int kept_count) {
  event.tokens.clear();
  event.usage.output_count = std::min(event.usage.output_count, kept_count);
  if (!event.finish.has_value()) return;
  event.finish = FinishReason::kStop;
  event.end_token.reset();
  event.status = Status();
  event.refusal = {};
}

void merge(StreamEvent& into, StreamEvent&& event) {
  into.tokens.insert(into.tokens.end(), std::make_move_iterator(event.tokens.begin()),
                     std::make_move_iterator(event.tokens.end()));
  into.prompt_scores.insert(into.prompt_scores.end(),
                            std::make_move_iterator(event.prompt_scores.begin()),
                            std::make_move_iterator(event.prompt_scores.end()));
  if (!event.pooled.empty()) into.pooled = std::move(event.pooled);
  into.finish = event.finish;
  into.end_token = event.end_token;
  into.usage = event.usage;
  into.status = std::move(event.status);
  into.refusal = event.refusal;
}

}  // namespace

std::optional<StreamEvent> TokenStream::poll(std::size_t tokens_max) {
  const std::lock_guard lock(mutex_);
  if (events_.empty()) return std::nullopt;
  std::vector<SampledToken>& waiting = events_.front().tokens;
  if (waiting.size() > tokens_max) {
    const auto end = waiting.begin() + static_cast<std::ptrdiff_t>(tokens_max);
    StreamEvent part;
    part.choice = events_.front().choice;
    part.usage = events_.front().usage;
    part.prompt_scores = std::exchange(events_.front().prompt_scores, {});
    part.tokens.assign(std::make_move_iterator(waiting.begin()), std::make_move_iterator(end));
    waiting.erase(waiting.begin(), end);
    return part;
  }
  StreamEvent event = std::move(events_.front());
  events_.erase(events_.begin());  // at most one per choice
  return event;
}

void TokenStream::set_ready_callback(std::function<void()> ready) {
  // Called under the lock, so that once this returns the previous callback runs no more.
  const std::lock_guard lock(mutex_);
  ready_ = std::move(ready);
  if (ready_ && !events_.empty()) ready_();
}

void TokenStream::finish(std::uint32_t choice, int kept_count) {
  const std::lock_guard lock(mutex_);
  const auto same_choice = [&](const auto& entry) { return entry.choice == choice; };
  if (std::ranges::any_of(stopped_, same_choice)) return;
  stopped_.push_back({choice, kept_count});
  stop_requests_.push_back({choice, kept_count});
  const auto unread = std::ranges::find_if(events_, same_choice);
  if (unread == events_.end()) return;
  drop_output_after_stop(*unread, kept_count);
  if (!unread->finish.has_value()) events_.erase(unread);  // only tokens, and nobody wants them
}

void TokenStream::push(StreamEvent event) {
  const std::lock_guard lock(mutex_);
  const auto same_choice = [&](const auto& entry) { return entry.choice == event.choice; };
  const auto stopped = std::ranges::find_if(stopped_, same_choice);
  if (stopped != stopped_.end()) {
    if (!event.finish.has_value()) return;
    drop_output_after_stop(event, stopped->kept_count);
  }
  const bool none_waiting = events_.empty();
  const auto unread = std::ranges::find_if(events_, same_choice);
  if (unread != events_.end()) {
    merge(*unread, std::move(event));
  } else {
    events_.push_back(std::move(event));
  }
  if (none_waiting && ready_) ready_();
}

std::vector<TokenStream::StopRequest> TokenStream::take_stop_requests() {
  const std::lock_guard lock(mutex_);
  return std::exchange(stop_requests_, {});
}

}  // namespace kun
