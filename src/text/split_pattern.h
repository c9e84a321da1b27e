// Translates the regular expressions of tokenizer files, written for Oniguruma, into PCRE2's
// dialect. The two read some of the same characters differently, and PCRE2 says nothing about it:
// \p{N}{1,3}+ is possessive to one and a repeated repetition to the other, [a&&[^b]] is a set
// operation to one and two literal ampersands to the other, and they disagree about which
// characters are white space. What has no equal here is refused by name.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace kun {

// White space as Unicode's White_Space property has it, as ranges inside a character class.
extern const std::string_view kWhiteSpaceRanges;

// Requires of the caller: compile the result with UTF, UCP and MULTILINE ($ ends a line in Ruby).
Result<std::string> translate_split_pattern(std::string_view pattern);

}  // namespace kun
