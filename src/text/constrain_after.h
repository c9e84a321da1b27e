// Thoughts first, then the answer: text is free until a mark ("</think>") has come, and constrained
// from there on.
#pragma once

#include <memory>
#include <string>

#include "plan/token_constraint.h"
#include "text/tokenizer.h"

namespace kun {

// The mark may come as one token or in pieces. What stands behind it in the token that completes it
// can only be white space; such a text cannot end before the mark. `tokenizer` must outlive it.
std::unique_ptr<TokenConstraint> constrain_after(std::string mark, const Tokenizer& tokenizer,
                                                 std::unique_ptr<TokenConstraint> rest);

}  // namespace kun
