#include "sampling/token_limits.h"

#include <algorithm>
#include <limits>

namespace kun {
namespace {

constexpr float kImpossible = -std::numeric_limits<float>::infinity();

// `allowed` is sorted and without repetition.
void keep_allowed(std::span<float> logits, std::span<const Token> allowed) {
  std::size_t next = 0;
  for (const Token token : allowed) {
    if (token < 0 || static_cast<std::size_t>(token) >= logits.size()) continue;
    const auto id = static_cast<std::size_t>(token);
    std::fill(logits.begin() + static_cast<std::ptrdiff_t>(next),
              logits.begin() + static_cast<std::ptrdiff_t>(id), kImpossible);
    next = id + 1;
  }
  std::fill(logits.begin() + static_cast<std::ptrdiff_t>(next), logits.end(), kImpossible);
}

}  // namespace

bool limits_tokens(const SamplingParams& params) {
  return !params.allowed_tokens.empty() || !params.bad_words.empty();
}

void apply_token_limits(std::span<float> logits, const SamplingRow& row) {
  const SamplingParams& params = *row.params;
  if (!params.allowed_tokens.empty()) keep_allowed(logits, params.allowed_tokens);
  const std::span<const Token> output =
      row.history.subspan(static_cast<std::size_t>(row.prompt_count));
  for (const std::vector<Token>& word : params.bad_words) {
    if (word.empty() || output.size() + 1 < word.size()) continue;
    const std::span<const Token> said = output.last(word.size() - 1);
    if (!std::ranges::equal(said, std::span(word).first(word.size() - 1))) continue;
    const auto last = static_cast<std::size_t>(word.back());  // negative ids become huge
    if (last < logits.size()) logits[last] = kImpossible;
  }
}

}  // namespace kun
