// The text of one choice, as its tokens arrive: bytes become whole characters, stop strings are
// found wherever token boundaries fall, and text that may turn out to be the beginning of a stop
// string is held back.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace kun {

// The stop strings of a request, prepared for matching byte by byte. Const: shared by its choices.
class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> strings);

  std::size_t size() const { return strings_.size(); }
  const std::string& string(std::size_t index) const { return strings_[index]; }

  // How much of string `index` has been seen when `byte` follows `seen` bytes of it.
  std::size_t advance(std::size_t index, std::size_t seen, char byte) const;

 private:
  std::vector<std::string> strings_;
  // [string][n]: longest proper border of its first n bytes (Knuth, Morris, Pratt).
  std::vector<std::vector<std::size_t>> borders_;
};

class ChoiceText {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;
    std::shared_ptr<const StopMatcher> stops;
    bool skip_special_tokens = true;
    bool include_stop = false;    // a stop string stays in the text
    bool trim_first_space = false;  // the tokenizer puts one before a text; see Tokenizer
  };

  explicit ChoiceText(Options options);

  // Appends a token. True when its text completed a stop string: nothing may be added after that.
  // With `check_stops` off, stop strings that end or begin here do not count.
  bool add(Token token, bool check_stops = true);

  // No more tokens will come: what was held back is text after all.
  void finish();

  // Text that will not change any more, since the last call.
  std::string take();

  const std::string* stop_string() const { return stop_ ? &options_.stops->string(*stop_) : nullptr; }

 private:
  bool match(std::size_t from);

  Options options_;
  Utf8Repair repair_;
  std::string pending_;             // not taken yet
  std::size_t safe_ = 0;            // bytes of it that may be taken
  std::vector<std::size_t> seen_;   // [stop string]: bytes of it seen at the end of pending_
  std::optional<std::size_t> stop_;
  bool at_start_ = true;
};

}  // namespace kun
