// Sampling before comparing, not the other way round: see the header for why that is exact.
#include "sampling/verification.h"

#include <utility>

namespace kun {

void Verification::take(std::span<const float> logits, const SamplingRow& row, SliceResult& slice) {
  if (slice_ != &slice) over_ = false;
  slice_ = &slice;
  if (over_ || slice.corrupted || slice.starved) return;
  std::optional<SampledToken> token = sampler_.sample(logits, row);
  if (!token.has_value()) {
    (sampler_.starved() ? slice.starved : slice.corrupted) = true;
    return;
  }
  over_ = row.draft != kNoDraft && row.draft != token->token;
  slice.tokens.push_back(*std::move(token));
}

}  // namespace kun
