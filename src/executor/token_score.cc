#include "executor/token_score.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace kun {

std::optional<SampledToken> score_token(std::span<const float> logits, int limit, Token given,
                                        int top_count) {
  if (given < 0 || static_cast<std::size_t>(given) >= logits.size()) return std::nullopt;
  float max = -std::numeric_limits<float>::infinity();
  for (const float logit : logits) {
    if (std::isnan(logit)) return std::nullopt;
    max = std::max(max, logit);
  }
  if (!std::isfinite(max)) return std::nullopt;
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(double{logit} - double{max});
  const double log_sum = std::log(sum);
  const auto logprob = [&](Token id) {
    const double logit{logits[static_cast<std::size_t>(id)]};
    return static_cast<float>(logit - double{max} - log_sum);
  };
  SampledToken score;
  score.token = given;
  score.logprob = logprob(given);
  std::vector<Token> ids(limit > 0 ? std::min(static_cast<std::size_t>(limit), logits.size())
                                   : logits.size());
  std::iota(ids.begin(), ids.end(), Token{0});
  const auto count = std::min(static_cast<std::ptrdiff_t>(top_count), std::ssize(ids));
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(), [&](Token a, Token b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const Token id = ids[static_cast<std::size_t>(i)];
    score.top.push_back({id, logprob(id)});
  }
  return score;
}

}  // namespace kun
