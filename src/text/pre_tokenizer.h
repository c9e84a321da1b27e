// Cuts normalized text into the pieces that are tokenized independently: a row of steps, each of
// which works on the pieces that the step before it left.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex.h"
#include "text/tokenizer_spec.h"

namespace kun {

// What a cut writes to. One per thread at a time.
struct PreTokenizerScratch {
  struct Span {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool is_match = false;
  };

  RegexScratch regex;
  std::vector<std::string_view> pieces;  // the result
  std::vector<std::string_view> next;
  std::vector<Span> spans;
  std::deque<std::string> rewritten;  // text that pieces point into where a step changed it
};

// Const once built; any thread may use it with a scratch of its own.
class PreTokenizer {
 public:
  static Result<PreTokenizer> create(const std::vector<SplitSpec>& specs);

  // Leaves the pieces of `text` in scratch.pieces; they are valid until the next call and as long
  // as `text`. `starts_input`: nothing came before `text`. Requires: valid UTF-8.
  void cut(std::string_view text, bool starts_input, PreTokenizerScratch& scratch) const;

 private:
  struct Step {
    SplitSpec spec;
    std::vector<Regex> regex;  // one for kRegex, none else
  };

  static void split(const Step& step, std::string_view piece, PreTokenizerScratch& scratch);

  std::vector<Step> steps_;
};

}  // namespace kun
