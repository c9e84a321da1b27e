// Prompts for models that fill in what stands between a prefix and a suffix.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace kun {

// Nothing when the vocabulary has no tokens for it.
std::optional<std::vector<Token>> fill_in_tokens(const Tokenizer& tokenizer,
                                                 std::string_view prefix, std::string_view suffix,
                                                 bool add_special_tokens);

}  // namespace kun
