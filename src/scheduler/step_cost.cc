// Weighted least squares with guards: times are noisy, and one odd step must not stall prompts.
#include "scheduler/step_cost.h"

#include <algorithm>

namespace kun {

namespace {

// A step's weight halves every 13 steps: long enough to hold steps of several sizes at once, short
// enough to follow contexts as they grow.
constexpr double kDecay = 0.95;

// Steps that differ by less than this share of their mean length say nothing about the slope.
constexpr double kSpreadMin = 0.1;

// However noisy the times, a token costs at least this share of the mean cost per token.
constexpr double kSlopeShareMin = 0.01;

}  // namespace

void StepCost::observe(int token_count, std::int64_t elapsed_us) {
  if (token_count <= 0 || elapsed_us <= 0) return;
  const double tokens = token_count;
  const auto time = static_cast<double>(elapsed_us);
  weight_ = weight_ * kDecay + 1.0;
  tokens_ = tokens_ * kDecay + tokens;
  time_ = time_ * kDecay + time;
  tokens_tokens_ = tokens_tokens_ * kDecay + tokens * tokens;
  tokens_time_ = tokens_time_ * kDecay + tokens * time;

  const double mean_tokens = tokens_ / weight_;
  const double mean_time = time_ / weight_;
  const double variance = tokens_tokens_ / weight_ - mean_tokens * mean_tokens;
  const double spread_min = kSpreadMin * mean_tokens;
  const double mean_cost = mean_time / mean_tokens;
  // Without spread the slope of earlier steps stands; before any, all cost is taken for slope,
  // which errs towards small steps.
  double slope = per_token_us_ > 0.0 ? per_token_us_ : mean_cost;
  if (variance > spread_min * spread_min) {
    slope = (tokens_time_ / weight_ - mean_tokens * mean_time) / variance;
  }
  per_token_us_ = std::clamp(slope, kSlopeShareMin * mean_cost, mean_cost);
  fixed_us_ = mean_time - per_token_us_ * mean_tokens;
}

double StepCost::tokens_within(double target_us, int token_count) const {
  return (target_us - fixed_us_) / per_token_us_ - token_count;
}

}  // namespace kun
