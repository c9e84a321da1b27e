// Sampling before comparing, not the other way round: see the header for why that is exact.
#include "sampling/verification.h"

#include <utility>

namespace kun {

void Verification::take(std::span<const float> logits, const SamplingRow& row, SliceResult& slice) {
  if (slice_ != &slice) over_ = false;
  slice_ = &slice;
  if (over_ || slice.corrupted) return;
  std::optional<SampledToken> token = sampler_.sample(logits, row);
  slice.corrupted = !token.has_value();
  if (slice.corrupted) return;
  over_ = row.draft != kNoDraft && row.draft != token->token;
  slice.tokens.push_back(*std::move(token));
}

}  // namespace kun
