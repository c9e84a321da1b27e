// A Drafter guesses what sequences will say next. Its guesses are verified, so it may be wrong,
// lose its memory or give up; it can make answers faster, never different.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "plan/draft_wish.h"

namespace kun {

// One thread at a time.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // Fills drafts[i], empty so far, with at most wishes[i].count_max tokens that the model knows.
  // A failure is for good: the drafter is not asked again. A sequence that is not asked for in a
  // while has ended or needs no drafts; nobody tells.
  virtual Status propose(std::span<const DraftWish> wishes,
                         std::vector<std::vector<Token>>& drafts) = 0;
};

}  // namespace kun
