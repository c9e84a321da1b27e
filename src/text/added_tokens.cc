// A trie, entered only at bytes that some token starts with; for most models that is '<' alone,
// which memchr finds at the speed of memory.
#include "text/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>

#include "text/utf8.h"

namespace kun {
namespace {

bool is_space(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (c >= 0x9 && c <= 0xD) || c == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
         category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

// \w: letters, marks, numbers and connecting punctuation.
bool is_word(char32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NO) ||
         category == UTF8PROC_CATEGORY_PC;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  const bool word_before =
      begin > 0 && is_word(first_code_point(text.substr(previous_character(text, begin))));
  const bool word_behind = end < text.size() && is_word(first_code_point(text.substr(end)));
  return !word_before && !word_behind;
}

std::size_t space_before(std::string_view text, std::size_t begin, std::size_t bound) {
  while (begin > bound) {
    const std::size_t last = previous_character(text, begin);
    if (last < bound || !is_space(first_code_point(text.substr(last)))) break;
    begin = last;
  }
  return begin;
}

std::size_t space_behind(std::string_view text, std::size_t end) {
  while (end < text.size() && is_space(first_code_point(text.substr(end)))) {
    end += utf8_length(text[end]);
  }
  return end;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<Entry>& entries) {
  std::map<std::string_view, std::size_t> sorted;  // of equal contents the first counts
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].content.empty()) sorted.emplace(entries[i].content, i);
  }
  // Breadth first over the sorted contents: a node is the range of contents that share its prefix,
  // so the edges of one node come out together and in order.
  struct Work {
    std::uint32_t node;
    std::size_t begin, end, depth;
  };
  std::vector<std::string_view> contents;
  std::vector<std::size_t> owners;
  for (const auto& [content, index] : sorted) {
    contents.push_back(content);
    owners.push_back(index);
  }
  nodes_.emplace_back();
  std::vector<Work> work{{0, 0, contents.size(), 0}};
  for (std::size_t w = 0; w < work.size(); ++w) {
    Work at = work[w];
    if (at.begin < at.end && contents[at.begin].size() == at.depth) {
      nodes_[at.node].token = static_cast<std::int32_t>(tokens_.size());
      tokens_.push_back(entries[owners[at.begin]].options);
      tokens_.back().content.clear();
      ++at.begin;
    }
    nodes_[at.node].edges_begin = static_cast<std::uint32_t>(edges_.size());
    while (at.begin < at.end) {
      const char byte = contents[at.begin][at.depth];
      std::size_t end = at.begin;
      while (end < at.end && contents[end][at.depth] == byte) ++end;
      const auto node = static_cast<std::uint32_t>(nodes_.size());
      edges_.push_back({static_cast<unsigned char>(byte), node});
      nodes_.emplace_back();
      work.push_back({node, at.begin, end, at.depth + 1});
      at.begin = end;
    }
    nodes_[at.node].edges_end = static_cast<std::uint32_t>(edges_.size());
  }
  for (std::uint32_t e = nodes_[0].edges_begin; e < nodes_[0].edges_end; ++e) {
    starts_[edges_[e].byte] = true;
  }
  if (nodes_[0].edges_end - nodes_[0].edges_begin == 1) only_start_ = edges_[0].byte;
}

const AddedTokenMatcher::Node* AddedTokenMatcher::step(const Node& node, unsigned char byte) const {
  const auto begin = edges_.begin() + node.edges_begin;
  const auto end = edges_.begin() + node.edges_end;
  const auto edge =
      std::lower_bound(begin, end, byte, [](const Edge& e, unsigned char b) { return e.byte < b; });
  return edge == end || edge->byte != byte ? nullptr : &nodes_[edge->node];
}

std::pair<std::int32_t, std::size_t> AddedTokenMatcher::longest_at(std::string_view text,
                                                                   std::size_t at) const {
  std::pair<std::int32_t, std::size_t> longest{-1, at};
  const Node* node = &nodes_[0];
  for (std::size_t i = at; i < text.size(); ++i) {
    node = step(*node, static_cast<unsigned char>(text[i]));
    if (node == nullptr) break;
    if (node->token >= 0) longest = {node->token, i + 1};
  }
  return longest;
}

std::size_t AddedTokenMatcher::next_candidate(std::string_view text, std::size_t from) const {
  if (only_start_ >= 0) {
    if (from >= text.size()) return text.size();
    const void* found = std::memchr(text.data() + from, only_start_, text.size() - from);
    return found == nullptr
               ? text.size()
               : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  }
  while (from < text.size() && !starts_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Segment>& segments) const {
  segments.clear();
  std::size_t done = 0;
  std::size_t at = empty() ? text.size() : next_candidate(text, 0);
  while (at < text.size()) {
    const auto [index, match_end] = longest_at(text, at);
    if (index < 0) {
      at = next_candidate(text, at + 1);
      continue;
    }
    const AddedTokenSpec& token = tokens_[static_cast<std::size_t>(index)];
    if (token.single_word && !stands_alone(text, at, match_end)) {
      at = next_candidate(text, match_end);
      continue;
    }
    const std::size_t begin = token.lstrip ? space_before(text, at, done) : at;
    const std::size_t end = token.rstrip ? space_behind(text, match_end) : match_end;
    if (begin > done) segments.push_back({done, begin, kText});
    segments.push_back({begin, end, token.id});
    done = end;
    at = next_candidate(text, end);
  }
  if (done < text.size()) segments.push_back({done, text.size(), kText});
}

}  // namespace kun
