// The text of one choice, as its tokens arrive: whole characters only, up to the first stop
// string, wherever token boundaries fall. Text that may turn out to be the beginning of a stop
// string is held back.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace kun {

// Not thread-safe.
class ChoiceText {
 public:
  struct Options {
    const Tokenizer* tokenizer = nullptr;
    std::shared_ptr<const StopStrings> stops;  // shared by the choices of a request
    bool include_stop = false;                 // a stop string stays in the text
    bool skip_special_tokens = true;
    bool spaces_between_special_tokens = true;
    std::shared_ptr<const std::vector<Token>> kept_special;  // see DetokenizerOptions
  };

  explicit ChoiceText(const Options& options);

  // Appends a token. True when its text completed a stop string: the text is over then. With
  // `check_stops` off, stop strings do not count up to the end of this token.
  bool add(Token token, bool check_stops = true);

  // No more tokens will come: what was held back is text after all.
  void finish();

  // Text that will not change any more, since the last call.
  std::string take() { return std::exchange(ready_, {}); }

  // The stop string that ended the text; null if none has.
  const std::string* stop_string() const;

 private:
  std::shared_ptr<const StopStrings> stops_;
  std::shared_ptr<const std::vector<Token>> kept_special_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::string ready_;
};

}  // namespace kun
