// A. V. Aho, M. J. Corasick, "Efficient string matching", CACM 18(6), 1975. The depth of the state
// is the length of the longest suffix of the text that begins some string: exactly what has to be
// held back.
#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace kun {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  nodes_.emplace_back();
  root_children_.fill(kNone);
  for (std::size_t i = 0; i < strings_.size(); ++i) insert(static_cast<int>(i));
  link();
}

std::int32_t StopStrings::child(std::int32_t node, unsigned char byte) const {
  if (node == 0) return root_children_[byte];
  std::int32_t at = nodes_[static_cast<std::size_t>(node)].first_child;
  while (at != kNone && nodes_[static_cast<std::size_t>(at)].byte != byte) {
    at = nodes_[static_cast<std::size_t>(at)].next_sibling;
  }
  return at;
}

std::int32_t StopStrings::advance(std::int32_t node, unsigned char byte) const {
  while (true) {
    const std::int32_t next = child(node, byte);
    if (next != kNone) return next;
    if (node == 0) return 0;
    node = nodes_[static_cast<std::size_t>(node)].fallback;
  }
}

void StopStrings::insert(int index) {
  const std::string& text = at(index);
  if (text.empty()) return;
  std::int32_t node = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    std::int32_t next = child(node, byte);
    if (next == kNone) {
      next = static_cast<std::int32_t>(nodes_.size());
      Node& parent = nodes_[static_cast<std::size_t>(node)];
      const Node made{.next_sibling = parent.first_child, .depth = parent.depth + 1, .byte = byte};
      parent.first_child = next;
      if (node == 0) root_children_[byte] = next;
      nodes_.push_back(made);
    }
    node = next;
  }
  std::int32_t& string = nodes_[static_cast<std::size_t>(node)].string;
  if (string == kNone) string = index;
}

// Breadth first, so that fallbacks, which are shorter, are complete before they are used.
void StopStrings::link() {
  std::vector<std::int32_t> order{0};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Node parent = nodes_[static_cast<std::size_t>(order[i])];
    for (std::int32_t at = parent.first_child; at != kNone;) {
      Node& node = nodes_[static_cast<std::size_t>(at)];
      node.fallback = order[i] == 0 ? 0 : advance(parent.fallback, node.byte);
      if (node.string == kNone) {
        node.string = nodes_[static_cast<std::size_t>(node.fallback)].string;
      }
      order.push_back(at);
      at = node.next_sibling;
    }
  }
}

std::string StopMatcher::emit(std::size_t count) {
  std::string text = held_.substr(0, count);
  held_.erase(0, count);
  emitted_bytes_ += count;
  return text;
}

StopMatcher::Fed StopMatcher::feed(std::string_view text) {
  if (match_.has_value()) return {.emit = {}, .matched = true};
  for (std::size_t i = 0; i < text.size(); ++i) {
    state_ = strings_->advance(state_, static_cast<unsigned char>(text[i]));
    const int index = strings_->nodes_[static_cast<std::size_t>(state_)].string;
    if (index == StopStrings::kNone) continue;
    const std::size_t end = emitted_bytes_ + held_.size() + i + 1;
    const std::size_t begin = end - strings_->at(index).size();
    match_ = Match{index, begin, end};
    held_ += text.substr(0, i + 1);
    std::string last = emit((include_in_output_ ? end : begin) - emitted_bytes_);
    held_.clear();
    return {.emit = std::move(last), .matched = true};
  }
  held_ += text;
  const std::size_t kept = strings_->nodes_[static_cast<std::size_t>(state_)].depth;
  return {.emit = emit(held_.size() - kept), .matched = false};
}

std::string StopMatcher::finish() {
  return match_.has_value() ? "" : emit(held_.size());
}

int token_count_up_to(std::span<const std::size_t> text_ends, std::size_t end) {
  const auto reached = std::lower_bound(text_ends.begin(), text_ends.end(), end);
  const auto count = reached - text_ends.begin() + (reached == text_ends.end() ? 0 : 1);
  return static_cast<int>(count);
}

}  // namespace kun
