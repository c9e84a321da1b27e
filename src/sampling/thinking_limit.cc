#include "sampling/thinking_limit.h"

#include <algorithm>

namespace kun {
namespace {

// Line ends and the like may stand before the mark that opens a thought; nothing else does.
constexpr std::size_t kTokensBeforeMax = 4;

// Behind the first place of `part` that begins in [0, places); nullopt when there is none.
std::optional<std::size_t> find_end(std::span<const Token> text, std::span<const Token> part,
                                    std::size_t places) {
  if (part.empty()) return std::nullopt;
  const auto searched = text.first(std::min(text.size(), places + part.size() - 1));
  const auto found = std::search(searched.begin(), searched.end(), part.begin(), part.end());
  if (found == searched.end()) return std::nullopt;
  return static_cast<std::size_t>(found - searched.begin()) + part.size();
}

}  // namespace

std::optional<Token> forced_token(const SamplingRow& row) {
  const ThinkingLimit& limit = row.params->thinking;
  if (limit.token_count_max < 0 || limit.close.empty()) return std::nullopt;
  std::span<const Token> thought = row.history.subspan(static_cast<std::size_t>(row.prompt_count));
  const auto most = static_cast<std::size_t>(limit.token_count_max);
  if (thought.size() < most) return std::nullopt;  // most rows
  if (!limit.open) {
    const auto begin = find_end(thought, limit.begin, kTokensBeforeMax);
    if (!begin) return std::nullopt;
    thought = thought.subspan(*begin);
  }
  if (thought.size() < most || thought.size() - most >= limit.close.size()) return std::nullopt;
  if (find_end(thought, limit.close, thought.size())) return std::nullopt;  // it ended by itself
  return limit.close[thought.size() - most];
}

}  // namespace kun
