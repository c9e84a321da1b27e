// Sampling before comparing, not the other way round: see the header for why that is exact.
#include "sampling/verification.h"

#include <utility>

namespace kun {

void Verification::take(std::span<const float> logits, const SamplingRow& row, SliceResult& slice) {
  if (slice_ != &slice) over_ = behind_draft_ = false;
  slice_ = &slice;
  if (over_ || slice.corrupted || slice.starved) return;
  std::optional<SampledToken> token = sampler_.sample(logits, row);
  if (!token.has_value()) {
    // Behind a right draft: the next step meets this row again, unless the sequence ends first.
    if (behind_draft_) {
      over_ = true;
      return;
    }
    (sampler_.starved() ? slice.starved : slice.corrupted) = true;
    return;
  }
  over_ = row.draft != kNoDraft && row.draft != token->token;
  behind_draft_ = row.draft != kNoDraft;
  slice.tokens.push_back(*std::move(token));
}

}  // namespace kun
