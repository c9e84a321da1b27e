// Regular expressions over UTF-8 on PCRE2's just-in-time compiler. A match that exceeds its limits
// counts as no match, so hostile text costs a split and never the process.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace kun {

struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// What a search writes to. One per thread at a time.
class RegexScratch {
 public:
  RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;
  ~RegexScratch();

 private:
  friend class Regex;
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Const once compiled; any thread may search with a scratch of its own.
class Regex {
 public:
  // `pattern` in Oniguruma's dialect, see split_pattern.h.
  static Result<Regex> compile(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The leftmost match at or after `from`. Requires: `subject` is valid UTF-8, `from` is at the
  // start of a character or at its end.
  std::optional<TextRange> find(std::string_view subject, std::size_t from,
                                RegexScratch& scratch) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace kun
