// Guesses by looking up: what followed the last few tokens when they stood earlier in prompt or
// output will follow again. Costs next to nothing, and is right where texts repeat: edits of code,
// extraction, quotations, lists.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "executor/draft_memory.h"
#include "executor/drafter.h"

namespace kun {

// Where in a growing text each n-gram of one length stood before. As in zlib's deflate, a table of
// hashes leads to the last place and each place to the one before it; a look costs a bounded number
// of comparisons and an appended token a few operations, however long the text.
class NgramIndex {
 public:
  explicit NgramIndex(int length) : length_(length) {}

  // Takes in what `text` has beyond what was seen. Requires: it begins with what was seen.
  void update(std::span<const Token> text);

  // The place behind the last earlier occurrence of the longest run of tokens that ends `text`, of
  // at least `length` and at most `longest` tokens; -1 when there is none. Requires: update(text).
  int find(std::span<const Token> text, int longest) const;

 private:
  void insert(std::span<const Token> text, int end);
  void grow(std::span<const Token> text, std::size_t size);

  int length_;
  std::vector<std::int32_t> last_;    // [hash]: where the last run with it ends, or -1
  std::vector<std::int32_t> before_;  // [end]: where the run before with the same hash ends, or -1
};

struct NgramOptions {
  int longest = 5;   // tokens that are looked up together
  int shortest = 5;  // at least as many must have stood together before; 1 <= shortest <= longest
};

class NgramDrafter final : public Drafter {
 public:
  explicit NgramDrafter(NgramOptions options) : options_(options), memory_(kSequencesMax) {}

  Status propose(std::span<const DraftWish> wishes,
                 std::vector<std::vector<Token>>& drafts) override;

 private:
  static constexpr std::size_t kSequencesMax = 4096;

  struct State {
    std::vector<NgramIndex> index;  // one, once used
  };

  NgramOptions options_;
  DraftMemory<State> memory_;
};

// Guesses at random: it shows what wrong drafts cost.
class RandomDrafter final : public Drafter {
 public:
  explicit RandomDrafter(int vocabulary_size) : vocabulary_size_(vocabulary_size) {}

  Status propose(std::span<const DraftWish> wishes,
                 std::vector<std::vector<Token>>& drafts) override;

 private:
  int vocabulary_size_;
  std::uint64_t state_ = 1;
};

}  // namespace kun
