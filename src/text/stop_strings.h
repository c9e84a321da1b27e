// Finds stop strings in text that arrives in portions. Text that may yet turn out to be the
// beginning of a stop string is held back, so nothing has to be taken back from the client.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kun {

// The strings as one automaton (Aho-Corasick): time per byte does not grow with their number.
// Const once built; may be used from any thread.
class StopStrings {
 public:
  StopStrings() : StopStrings(std::vector<std::string>{}) {}
  // Empty strings stop nothing. Strings should be valid UTF-8, or text is cut inside a character.
  explicit StopStrings(std::vector<std::string> strings);

  bool empty() const { return nodes_.size() == 1; }
  const std::string& at(int index) const { return strings_[static_cast<std::size_t>(index)]; }

 private:
  friend class StopMatcher;
  static constexpr std::int32_t kNone = -1;

  struct Node {
    std::int32_t first_child = kNone;
    std::int32_t next_sibling = kNone;
    std::int32_t fallback = 0;    // the longest proper suffix that is a node as well
    std::int32_t string = kNone;  // the longest string that ends here
    std::uint32_t depth = 0;
    unsigned char byte = 0;
  };

  std::int32_t child(std::int32_t node, unsigned char byte) const;
  std::int32_t advance(std::int32_t node, unsigned char byte) const;
  void insert(int index);
  void link();

  std::vector<std::string> strings_;
  std::vector<Node> nodes_;  // the root first
  std::array<std::int32_t, 256> root_children_{};
};

// One stream of text. Not thread-safe; `strings` must outlive it.
class StopMatcher {
 public:
  // Offsets are bytes since the start of the stream.
  struct Match {
    int index = 0;  // of the stop string
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  struct Fed {
    std::string emit;      // safe to send
    bool matched = false;  // the stream is over
  };

  explicit StopMatcher(const StopStrings& strings, bool include_in_output = false)
      : strings_(&strings), include_in_output_(include_in_output) {}

  // Of several stop strings the one that ends first counts, of those the longest. After a match
  // nothing more is emitted.
  Fed feed(std::string_view text);

  // The end of the text: what is still held back.
  std::string finish();

  const std::optional<Match>& match() const { return match_; }
  std::size_t emitted_bytes() const { return emitted_bytes_; }
  std::size_t held_bytes() const { return held_.size(); }

 private:
  std::string emit(std::size_t count);

  const StopStrings* strings_;
  bool include_in_output_;
  std::int32_t state_ = 0;
  std::string held_;  // fed and not yet emitted
  std::size_t emitted_bytes_ = 0;
  std::optional<Match> match_;
};

// How many tokens are needed to reach byte `end` of the text, when `text_ends[i]` is the length of
// the text after token i: what is kept of a stopped choice, with StopMatcher::Match::end.
int token_count_up_to(std::span<const std::size_t> text_ends, std::size_t end);

}  // namespace kun
