// Thoughts first, then the answer: text is free until a mark ("</think>") has come, and constrained
// from there on.
#pragma once

#include <memory>
#include <string>

#include "plan/token_constraint.h"
#include "text/tokenizer.h"

namespace kun {

class EndMark;

// What a vocabulary has to do with a mark. To make it takes a look at every token, so that it is
// made once for a tokenizer, which must outlive it.
std::shared_ptr<const EndMark> make_end_mark(std::string mark, const Tokenizer& tokenizer);

// The mark may come as one token or in pieces. What stands behind it in the token that completes it
// can only be white space; such a text cannot end before the mark.
std::unique_ptr<TokenConstraint> constrain_after(std::shared_ptr<const EndMark> mark,
                                                 std::unique_ptr<TokenConstraint> rest);

}  // namespace kun
