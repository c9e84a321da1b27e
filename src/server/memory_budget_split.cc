#include "server/memory_budget_split.h"

#include <algorithm>

namespace kun {
namespace {

// Of a lexer state; see GrammarLimits.
constexpr std::size_t kLexerStateBytes = 2048;

}  // namespace

MemorySplit split_budget(std::size_t free_bytes) {
  return {.limit_bytes = free_bytes / 2, .parsing_bytes = free_bytes / 4};
}

// The ledger's limit is half of what was free, and all documents together have a quarter of that.
std::size_t parsing_bytes(const MemoryLedger& memory, int thread_count) {
  const std::size_t all = memory.limit() / 2;
  return all / static_cast<std::size_t>(std::max(thread_count, 1));
}

GrammarCompilerLimits grammar_limits(const MemoryLedger& memory) {
  GrammarCompilerLimits limits;
  if (memory.limit() == 0) return limits;
  limits.alive_bytes_max = memory.limit() / 4;
  limits.cache_bytes_max = std::min(limits.cache_bytes_max, memory.limit() / 8);
  const std::size_t states = limits.alive_bytes_max / 2 / kLexerStateBytes;
  limits.grammar.lexer_states_max =
      std::clamp<std::uint64_t>(states, 2000, limits.grammar.lexer_states_max);
  return limits;
}

}  // namespace kun
