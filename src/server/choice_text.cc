#include "server/choice_text.h"

#include <algorithm>
#include <utility>

namespace kun {

StopMatcher::StopMatcher(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& string : strings_) {
    std::vector<std::size_t> border(string.size() + 1, 0);
    for (std::size_t i = 1; i < string.size(); ++i) {
      std::size_t length = border[i];
      while (length > 0 && string[i] != string[length]) length = border[length];
      border[i + 1] = string[i] == string[length] ? length + 1 : 0;
    }
    borders_.push_back(std::move(border));
  }
}

std::size_t StopMatcher::advance(std::size_t index, std::size_t seen, char byte) const {
  const std::string& string = strings_[index];
  while (seen > 0 && string[seen] != byte) seen = borders_[index][seen];
  return string[seen] == byte ? seen + 1 : 0;
}

ChoiceText::ChoiceText(Options options) : options_(std::move(options)) {
  seen_.resize(options_.stops ? options_.stops->size() : 0, 0);
}

bool ChoiceText::add(Token token, bool check_stops) {
  if (stop_) return true;
  std::string_view bytes = options_.tokenizer->bytes(token, options_.skip_special_tokens);
  if (at_start_ && !bytes.empty()) {
    if (options_.trim_first_space && bytes.front() == ' ') bytes.remove_prefix(1);
    at_start_ = false;
  }
  const std::size_t from = pending_.size();
  repair_.feed(bytes, pending_);
  if (!check_stops) {
    std::ranges::fill(seen_, 0U);
    safe_ = pending_.size();
    return false;
  }
  return match(from);
}

bool ChoiceText::match(std::size_t from) {
  for (std::size_t i = from; i < pending_.size(); ++i) {
    for (std::size_t s = 0; s < seen_.size(); ++s) {
      seen_[s] = options_.stops->advance(s, seen_[s], pending_[i]);
      const std::size_t length = options_.stops->string(s).size();
      if (seen_[s] < length) continue;
      stop_ = s;
      pending_.resize(options_.include_stop ? i + 1 : i + 1 - length);
      safe_ = pending_.size();
      return true;
    }
  }
  const std::size_t held = seen_.empty() ? 0 : *std::ranges::max_element(seen_);
  safe_ = pending_.size() - held;
  return false;
}

void ChoiceText::finish() {
  if (!stop_) repair_.finish(pending_);
  safe_ = pending_.size();
}

std::string ChoiceText::take() {
  std::string text = pending_.substr(0, safe_);
  // A stop string is valid UTF-8, so it begins and ends between characters.
  pending_.erase(0, safe_);
  safe_ = 0;
  return text;
}

}  // namespace kun
