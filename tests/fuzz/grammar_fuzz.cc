// A demand of a stranger and what a model might say under it: the first byte chooses between
// schema, regular expression, Lark and GBNF, the demand goes up to the first NUL byte, and text
// follows. Whatever they are, compiling ends in a grammar or an error, a mask holds the tokens that
// are taken and no others, and taking tokens back leads to the same place.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_tokenizer.h"
#include "text/gbnf.h"
#include "text/grammar.h"

namespace {

using Bits = std::vector<std::uint32_t>;

const kun::GrammarVocabulary& vocabulary() {
  static const auto tokenizer = kun::make_byte_tokenizer();
  static const auto made = kun::GrammarVocabulary::create(*tokenizer);
  return **made;
}

kun::GrammarSource source_of(char kind, std::string text) {
  kun::GrammarSource source;
  switch (static_cast<unsigned char>(kind) % 4) {
    case 0: source.schemas.push_back(std::move(text)); return source;
    case 1: source.kind = kun::GrammarKind::kRegex; break;
    case 2: source.kind = kun::GrammarKind::kLark; break;
    default:
      if (auto lark = kun::gbnf_to_lark(text)) return *std::move(lark);
  }
  source.text = std::move(text);
  return source;
}

void follow(kun::TokenConstraint& state, std::string_view text) {
  Bits before(9);
  if (!state.fill_mask(before).ok()) return;
  const auto start = state.clone();
  int taken = 0;
  for (const char c : text.substr(0, 64)) {
    Bits bits(9);
    if (state.ending() == kun::TokenConstraint::Ending::kReached) break;
    if (!state.fill_mask(bits).ok()) return;
    const auto byte = static_cast<unsigned char>(c);
    if (((bits[byte / 32U] >> (byte % 32U)) & 1U) == 0) break;
    if (!state.advance(byte).ok()) return;
    ++taken;
  }
  if (taken == 0 || !state.rollback(taken).ok()) return;
  Bits after(9);
  if (!state.fill_mask(after).ok()) return;
  if (before != after || state.ending() != start->ending()) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0', 1);
  const std::string demand(input.substr(1, end == std::string_view::npos ? end : end - 1));
  const std::string_view text = end == std::string_view::npos ? "" : input.substr(end + 1);
  kun::GrammarLimits limits;
  limits.compile_steps_max = 50'000;
  limits.mask_steps_max = 20'000;
  limits.symbols_max = 10'000;
  limits.lexer_states_max = 5'000;
  const auto grammar = vocabulary().compile(source_of(input.front(), demand), limits);
  if (!grammar) return 0;
  follow(*(*grammar)->begin(), text);
  return 0;
}
