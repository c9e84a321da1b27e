#include "text/grammar.h"

#include <kun_bridge.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace kun {
namespace {

kun_bridge_view view(std::string_view text) {
  return {.data = text.data(), .size = text.size()};
}

// `text` is freed.
Status to_status(kun_bridge_status status, kun_bridge_string text) {
  std::string message = text.size == 0 ? std::string() : std::string(text.data, text.size);
  kun_bridge_string_free(text);
  switch (status) {
    case KUN_BRIDGE_OK: return {};
    case KUN_BRIDGE_REFUSED:
    case KUN_BRIDGE_EXHAUSTED: return invalid_argument("the grammar: " + message);
    case KUN_BRIDGE_PANICKED: break;
  }
  return internal_error(std::move(message));
}

struct FreeState {
  void operator()(kun_grammar_state* state) const { kun_grammar_state_free(state); }
};
using StateHandle = std::unique_ptr<kun_grammar_state, FreeState>;

struct FreeGrammar {
  void operator()(const kun_grammar* grammar) const { kun_grammar_free(grammar); }
};
using GrammarHandle = std::unique_ptr<const kun_grammar, FreeGrammar>;

struct FreeVocabulary {
  void operator()(kun_vocabulary* vocabulary) const { kun_vocabulary_free(vocabulary); }
};
using VocabularyHandle = std::unique_ptr<kun_vocabulary, FreeVocabulary>;

// Without a handle, after a bug in the bridge, everything fails.
class GrammarState final : public TokenConstraint {
 public:
  explicit GrammarState(StateHandle handle) : handle_(std::move(handle)) {}

  Status fill_mask(std::span<std::uint32_t> bits) override {
    if (handle_ == nullptr) return broken();
    kun_bridge_string error = {};
    const auto status = kun_grammar_state_mask(handle_.get(), bits.data(), bits.size(), &error);
    return to_status(status, error);
  }

  Status advance(Token token) override {
    if (handle_ == nullptr) return broken();
    kun_bridge_string error = {};
    const auto status =
        kun_grammar_state_consume(handle_.get(), static_cast<std::uint32_t>(token), &error);
    return to_status(status, error);
  }

  Status rollback(int count) override {
    if (handle_ == nullptr || count < 0) return broken();
    kun_bridge_string error = {};
    const auto status =
        kun_grammar_state_rollback(handle_.get(), static_cast<std::size_t>(count), &error);
    return to_status(status, error);
  }

  Ending ending() override {
    if (handle_ == nullptr) return Ending::kNotYet;
    switch (kun_grammar_state_end(handle_.get())) {
      case 1: return Ending::kAllowed;
      case 2: return Ending::kReached;
      default: return Ending::kNotYet;
    }
  }

  std::unique_ptr<TokenConstraint> clone() const override {
    StateHandle copy(handle_ == nullptr ? nullptr : kun_grammar_state_clone(handle_.get()));
    return std::make_unique<GrammarState>(std::move(copy));
  }

 private:
  static Status broken() { return internal_error("the grammar's state is broken"); }

  StateHandle handle_;
};

class BridgeGrammar final : public Grammar {
 public:
  explicit BridgeGrammar(GrammarHandle handle) : handle_(std::move(handle)) {}

  std::unique_ptr<TokenConstraint> begin() const override {
    return std::make_unique<GrammarState>(StateHandle(kun_grammar_state_create(handle_.get())));
  }

  std::size_t bytes() const override {
    constexpr std::size_t kMax = std::size_t{1} << 40U;
    return std::min(kun_grammar_bytes(handle_.get()), kMax);
  }

  bool usable() const override {
    return kun_grammar_bytes(handle_.get()) != std::numeric_limits<std::size_t>::max();
  }

 private:
  GrammarHandle handle_;
};

class BridgeVocabulary final : public GrammarVocabulary {
 public:
  explicit BridgeVocabulary(VocabularyHandle handle) : handle_(std::move(handle)) {}

  Result<std::shared_ptr<const Grammar>> compile(const GrammarSource& source,
                                                 const GrammarLimits& limits) const override {
    std::vector<kun_bridge_view> schemas;
    schemas.reserve(source.schemas.size());
    for (const std::string& schema : source.schemas) schemas.push_back(view(schema));
    const kun_grammar_source bridge_source = {
        .kind = static_cast<std::int32_t>(source.kind),
        .text = view(source.text),
        .schemas = schemas.data(),
        .schema_count = schemas.size(),
        .whitespace = view(source.whitespace),
        .compact = source.compact ? 1 : 0,
        .no_additional_properties = source.no_additional_properties ? 1 : 0,
    };
    const kun_grammar_limits bridge_limits = {.compile_steps_max = limits.compile_steps_max,
                                              .mask_steps_max = limits.mask_steps_max,
                                              .symbols_max = limits.symbols_max,
                                              .lexer_states_max = limits.lexer_states_max};
    const kun_grammar* handle = nullptr;
    kun_bridge_string error = {};
    const auto status =
        kun_grammar_compile(handle_.get(), &bridge_source, bridge_limits, &handle, &error);
    RETURN_IF_ERROR(to_status(status, error));
    return std::shared_ptr<const Grammar>(std::make_shared<BridgeGrammar>(GrammarHandle(handle)));
  }

 private:
  VocabularyHandle handle_;
};

static_assert(static_cast<int>(GrammarKind::kJson) == KUN_GRAMMAR_JSON);
static_assert(static_cast<int>(GrammarKind::kRegex) == KUN_GRAMMAR_REGEX);
static_assert(static_cast<int>(GrammarKind::kLark) == KUN_GRAMMAR_LARK);

}  // namespace

std::string GrammarSource::key() const {
  std::string key;
  const auto add = [&key](std::string_view part) {
    key += std::to_string(part.size());
    key += ':';
    key += part;
  };
  key += static_cast<char>('0' + static_cast<int>(kind));
  key += compact ? 'c' : '-';
  key += no_additional_properties ? 'n' : '-';
  add(text);
  add(whitespace);
  for (const std::string& schema : schemas) add(schema);
  return key;
}

Result<std::unique_ptr<const GrammarVocabulary>> GrammarVocabulary::create(
    const Tokenizer& tokenizer) {
  std::string bytes;
  std::vector<std::uint32_t> offsets = {0};
  std::vector<std::uint8_t> special;
  for (Token id = 0; id < tokenizer.vocabulary_size(); ++id) {
    bytes += tokenizer.bytes(id, false);
    if (bytes.size() > std::numeric_limits<std::uint32_t>::max()) {
      return invalid_argument("the vocabulary is too large for grammars");
    }
    offsets.push_back(static_cast<std::uint32_t>(bytes.size()));
    special.push_back(tokenizer.is_special(id) ? 1 : 0);
  }
  const kun_tokens tokens = {.bytes = reinterpret_cast<const std::uint8_t*>(bytes.data()),
                             .offsets = offsets.data(),
                             .special = special.data(),
                             .count = special.size()};
  kun_vocabulary* handle = nullptr;
  kun_bridge_string error = {};
  const auto status = kun_vocabulary_create(&tokens, &handle, &error);
  RETURN_IF_ERROR(to_status(status, error));
  return std::unique_ptr<const GrammarVocabulary>(
      std::make_unique<BridgeVocabulary>(VocabularyHandle(handle)));
}

}  // namespace kun
