// Rewrites text before it is cut: Unicode normalization forms and the small replacements that
// SentencePiece-like tokenizers do.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/regex.h"
#include "text/tokenizer_spec.h"

namespace kun {

// Const once built; any thread may use it with a scratch of its own.
class Normalizer {
 public:
  static Result<Normalizer> create(const std::vector<NormalizerSpec>& specs);

  // `text` normalized: `text` itself where nothing changed, else a view into `storage`.
  // Requires: valid UTF-8.
  std::string_view normalize(std::string_view text, std::string& storage,
                             RegexScratch& scratch) const;

 private:
  struct Step {
    NormalizerSpec spec;
    std::vector<Regex> regex;  // one for kReplaceRegex, none else
  };

  std::vector<Step> steps_;
};

}  // namespace kun
