#include "text/marker_watch.h"

namespace kun {

int MarkerWatch::feed(char byte, std::string& text) {
  std::string pending(1, byte);
  // Each round either ends or makes one byte text: bounded by the length of the markers.
  while (!pending.empty()) {
    const char next = pending.front();
    if (match_.empty() && held_space_.find(next) != std::string_view::npos) {
      space_ += next;
      pending.erase(0, 1);
      continue;
    }
    match_ += next;
    pending.erase(0, 1);
    bool possible = false;
    for (std::size_t i = 0; i < markers_.size(); ++i) {
      if (markers_[i] == match_) return static_cast<int>(i);
      possible = possible || markers_[i].starts_with(match_);
    }
    if (possible) continue;
    text += std::exchange(space_, {});
    text += match_.front();
    pending.insert(0, match_.substr(1));
    match_.clear();
  }
  return -1;
}

std::string MarkerWatch::take_held() {
  std::string held = std::exchange(space_, {});
  held += std::exchange(match_, {});
  return held;
}

int WordExpectation::feed(char byte) {
  const bool space = byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
  if (seen_.empty() && space) return kMore;
  seen_ += byte;
  bool possible = false;
  for (std::size_t i = 0; i < words_.size(); ++i) {
    if (words_[i] == seen_) return static_cast<int>(i);
    possible = possible || words_[i].starts_with(seen_);
  }
  return possible ? kMore : kFailed;
}

}  // namespace kun
