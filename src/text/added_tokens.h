// Finds added tokens ("<｜User｜>", "<think>") inside text: at every place the longest one that
// matches, from left to right. They are matched before anything else happens to the text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_spec.h"

namespace kun {

// Const once built; any thread may use it.
class AddedTokenMatcher {
 public:
  static constexpr Token kText = -1;

  struct Segment {
    std::size_t begin = 0;
    std::size_t end = 0;
    Token id = kText;  // kText: no added token in here
  };

  struct Entry {
    std::string_view content;  // copied into the matcher
    AddedTokenSpec options;    // its content is not looked at
  };

  AddedTokenMatcher() : AddedTokenMatcher(std::vector<Entry>{}) {}
  explicit AddedTokenMatcher(const std::vector<Entry>& entries);

  bool empty() const { return tokens_.empty(); }

  // Replaces `segments` by those of `text`, which they cover without gaps or overlaps.
  void split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index into tokens_
    std::uint32_t edges_begin = 0;
    std::uint32_t edges_end = 0;
  };
  struct Edge {
    unsigned char byte = 0;
    std::uint32_t node = 0;
  };

  const Node* step(const Node& node, unsigned char byte) const;
  // The longest token at `at`: its index in tokens_ and its end. -1 when there is none.
  std::pair<std::int32_t, std::size_t> longest_at(std::string_view text, std::size_t at) const;
  std::size_t next_candidate(std::string_view text, std::size_t from) const;

  std::vector<AddedTokenSpec> tokens_;
  std::vector<Node> nodes_;  // a trie, its root first
  std::vector<Edge> edges_;  // of a node together, in the order of their bytes
  std::array<bool, 256> starts_{};
  int only_start_ = -1;  // the byte every token starts with, if it is one for all
};

}  // namespace kun
