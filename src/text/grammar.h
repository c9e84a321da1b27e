// Grammars for what a model may say: JSON schemas, regular expressions and Lark, over the tokens of
// a tokenizer. The work is llguidance's, behind bridge/; here are its C++ face and its limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/token_constraint.h"
#include "text/tokenizer.h"

namespace kun {

enum class GrammarKind : std::uint8_t { kJson, kRegex, kLark };

// What a client asks for, as plain data.
struct GrammarSource {
  GrammarKind kind = GrammarKind::kJson;
  std::string text;                  // regular expression, or Lark with the rule `start`
  std::vector<std::string> schemas;  // kJson: the one; kLark: what it calls @schema_0, @schema_1...
  std::string whitespace;            // regular expression between parts of JSON; empty: a default
  bool compact = false;              // JSON without white space
  bool no_additional_properties = false;  // where a schema says nothing of them

  // Equal for sources that mean the same.
  std::string key() const;
};

// Together they bound what a hostile grammar costs: about a second to compile, tens of milliseconds
// for a mask, and 1 to 2 KB for each lexer state.
struct GrammarLimits {
  std::uint64_t compile_steps_max = 1'000'000;
  std::uint64_t mask_steps_max = 200'000;
  std::uint64_t symbols_max = 200'000;
  std::uint64_t lexer_states_max = 40'000;
};

// Compiled; const, for any thread.
class Grammar {
 public:
  virtual ~Grammar() = default;

  // A state at its beginning. Outlives the grammar. Masks may be larger than the vocabulary.
  virtual std::unique_ptr<TokenConstraint> begin() const = 0;

  // An estimate of the memory it holds; grows while its states are in use.
  virtual std::size_t bytes() const = 0;

  // False once its states, which share a lexer, have passed the limit of lexer states: then all of
  // them fail, and it has to be compiled anew.
  virtual bool usable() const = 0;
};

// A tokenizer's tokens in the form grammars need: some 20 MB and a fifth of a second for 128k.
// Const; any thread may use it.
class GrammarVocabulary {
 public:
  static Result<std::unique_ptr<const GrammarVocabulary>> create(const Tokenizer& tokenizer);
  virtual ~GrammarVocabulary() = default;

  // kInvalidArgument says what is wrong with the source, or that it exceeds a limit.
  virtual Result<std::shared_ptr<const Grammar>> compile(
      const GrammarSource& source, const GrammarLimits& limits = {}) const = 0;
};

}  // namespace kun
