// Test support: texts held against grammars, token by token.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar.h"

namespace kun {

inline std::vector<std::uint32_t> mask_of(TokenConstraint& state, int vocabulary_size) {
  std::vector<std::uint32_t> bits((static_cast<std::size_t>(vocabulary_size) + 31) / 32, 0);
  const Status status = state.fill_mask(bits);
  EXPECT_TRUE(status.ok()) << status.message();
  return bits;
}

inline bool allows(const std::vector<std::uint32_t>& bits, Token token) {
  const auto index = static_cast<std::size_t>(token);
  return ((bits[index / 32] >> (index % 32)) & 1U) != 0;
}

// Whether the tokens may follow, one after the other.
inline bool takes(TokenConstraint& state, const std::vector<Token>& tokens, int vocabulary_size) {
  for (const Token token : tokens) {
    if (state.ending() == TokenConstraint::Ending::kReached) return false;
    if (!allows(mask_of(state, vocabulary_size), token)) return false;
    const Status status = state.advance(token);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return true;
}

// Whether the whole text is one of the grammar's.
inline bool matches(const Grammar& grammar, const Tokenizer& tokenizer, std::string_view text) {
  const std::unique_ptr<TokenConstraint> state = grammar.begin();
  return takes(*state, tokenizer.encode(text, false), tokenizer.vocabulary_size()) &&
         state->ending() != TokenConstraint::Ending::kNotYet;
}

inline GrammarSource json_source(std::string schema) {
  GrammarSource source;
  source.schemas.push_back(std::move(schema));
  return source;
}

inline GrammarSource text_source(GrammarKind kind, std::string text) {
  GrammarSource source;
  source.kind = kind;
  source.text = std::move(text);
  return source;
}

}  // namespace kun
