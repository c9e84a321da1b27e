// Notices when a model says the same over and over: a pattern of so many tokens, so many times in a
// row (vLLM's repetition_detection).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "base/token.h"

namespace kun {

struct RepetitionLimits {
  int pattern_size_min = 1;
  int pattern_size_max = 0;  // 0: nothing is watched
  int count_min = 2;         // of the pattern in a row
};

// Not thread-safe.
class RepetitionWatch {
 public:
  explicit RepetitionWatch(const RepetitionLimits& limits)
      : limits_(limits), runs_(static_cast<std::size_t>(limits.pattern_size_max) + 1, 0) {}

  // True when `token` completes a repetition. Time: the number of pattern sizes.
  bool add(Token token) {
    tokens_.push_back(token);
    bool repeats = false;
    const auto min = static_cast<std::size_t>(limits_.pattern_size_min);
    const auto max = static_cast<std::size_t>(limits_.pattern_size_max);
    for (std::size_t size = min; size <= max && size < tokens_.size(); ++size) {
      // runs_[size]: how many of the last tokens equal the one `size` before them.
      const bool equal = tokens_[tokens_.size() - 1 - size] == token;
      runs_[size] = equal ? runs_[size] + 1 : 0;
      repeats = repeats || runs_[size] >= size * static_cast<std::size_t>(limits_.count_min - 1);
    }
    return repeats;
  }

 private:
  RepetitionLimits limits_;
  std::vector<Token> tokens_;
  std::vector<std::size_t> runs_;  // [pattern size]
};

}  // namespace kun
