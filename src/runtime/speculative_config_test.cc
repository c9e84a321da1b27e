// What --speculative-config understands, and that it refuses everything else by name.
#include "runtime/speculative_config.h"

#include <gtest/gtest.h>

#include "text/byte_tokenizer.h"

namespace kun {
namespace {

SpeculativeConfig parsed(std::string_view json) {
  auto config = parse_speculative_config(json);
  EXPECT_TRUE(config.has_value()) << config.error().message();
  return config.has_value() ? *config : SpeculativeConfig{};
}

// The refusal, which names the option and the trouble.
void expect_refused(std::string_view json, std::string_view word) {
  const auto config = parse_speculative_config(json);
  ASSERT_FALSE(config.has_value()) << json;
  EXPECT_EQ(config.error().code(), StatusCode::kInvalidArgument) << json;
  const std::string message(config.error().message());
  EXPECT_NE(message.find("--speculative-config"), std::string::npos) << message;
  EXPECT_NE(message.find(word), std::string::npos) << message;
}

TEST(SpeculativeConfig, IsOffWhenItIsEmpty) {
  EXPECT_EQ(parsed("").method, DraftMethod::kNone);
  EXPECT_EQ(parsed("").draft_count_max, 0);
}

TEST(SpeculativeConfig, ReadsVllmsNgramForm) {
  const SpeculativeConfig config = parsed(R"({"method":"ngram","num_speculative_tokens":4,)"
                                          R"("prompt_lookup_max":4,"prompt_lookup_min":2})");
  EXPECT_EQ(config.method, DraftMethod::kNgram);
  EXPECT_EQ(config.draft_count_max, 4);
  EXPECT_EQ(config.ngram.longest, 4);
  EXPECT_EQ(config.ngram.shortest, 2);
  EXPECT_TRUE(config.adaptive);
  EXPECT_EQ(config.draft_sequences_max, 0);
}

TEST(SpeculativeConfig, FillsInLookupsAsVllmDoes) {
  const auto lookups = [](std::string_view more) {
    const SpeculativeConfig config =
        parsed(R"({"method":"ngram","num_speculative_tokens":4)" + std::string(more) + "}");
    return std::pair(config.ngram.shortest, config.ngram.longest);
  };
  EXPECT_EQ(lookups(""), std::pair(5, 5));
  EXPECT_EQ(lookups(R"(,"prompt_lookup_max":3)"), std::pair(3, 3));
  EXPECT_EQ(lookups(R"(,"prompt_lookup_min":2)"), std::pair(2, 2));
}

TEST(SpeculativeConfig, DraftsOneTokenWithTheModelsOwnModule) {
  EXPECT_EQ(parsed(R"({"method":"mtp"})").draft_count_max, 1);
  EXPECT_EQ(parsed(R"({"method":"deepseek_mtp","num_speculative_tokens":3})").draft_count_max, 3);
}

TEST(SpeculativeConfig, ReadsADraftModelWithOrWithoutItsMethod) {
  for (const char* method : {R"("method":"draft_model",)", ""}) {
    const SpeculativeConfig config = parsed("{" + std::string(method) +
                                            R"("model":"a/b","num_speculative_tokens":3,)"
                                            R"("disable_by_batch_size":8,"adaptive":false})");
    EXPECT_EQ(config.method, DraftMethod::kDraftModel);
    EXPECT_EQ(config.model, "a/b");
    EXPECT_EQ(config.draft_count_max, 3);
    EXPECT_EQ(config.draft_sequences_max, 8);
    EXPECT_FALSE(config.adaptive);
  }
}

TEST(SpeculativeConfig, KnowsTheModelsOwnModuleByBothOfItsNames) {
  for (const std::string method : {"mtp", "deepseek_mtp"}) {
    const std::string json = R"({"method":")" + method + R"(","num_speculative_tokens":1})";
    EXPECT_EQ(parsed(json).method, DraftMethod::kMtp);
    EXPECT_TRUE(needs_next_token_module(json));
  }
  EXPECT_FALSE(needs_next_token_module(R"({"method":"ngram","num_speculative_tokens":1})"));
  EXPECT_FALSE(needs_next_token_module(""));
  EXPECT_FALSE(needs_next_token_module("{"));
  expect_refused(R"({"method":"mtp","model":"a","num_speculative_tokens":1})", "draft_model");
}

TEST(SpeculativeConfig, RefusesWhatItDoesNotKnowByName) {
  expect_refused(R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_maximum":4})",
                 "prompt_lookup_maximum");
  expect_refused(R"({"method":"medusa","num_speculative_tokens":4})", "medusa");
  expect_refused(R"({"method":"dspark","num_speculative_tokens":5})",
                 "DSpark's drafting module, which is not supported");
  expect_refused(R"({"num_speculative_tokens":1})", "method");
  expect_refused("[1]", "object");
  expect_refused("{", "JSON");
}

TEST(SpeculativeConfig, RefusesAbsurdAndMissingValues) {
  expect_refused(R"({"method":"ngram"})", "num_speculative_tokens");
  for (const char* count : {"0", "-1", "1000", "1.5", "\"4\"", "true", "9999999999999999"}) {
    expect_refused(R"({"method":"ngram","num_speculative_tokens":)" + std::string(count) + "}",
                   "num_speculative_tokens");
  }
  expect_refused(R"({"method":"ngram","num_speculative_tokens":4,)"
                 R"("prompt_lookup_max":2,"prompt_lookup_min":3})",
                 "above");
  expect_refused(R"({"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":0})",
                 "prompt_lookup_max");
  expect_refused(R"({"method":"draft_model","num_speculative_tokens":4})", "model");
  expect_refused(R"({"method":"ngram","model":"a","num_speculative_tokens":4})", "draft_model");
  expect_refused(R"({"model":"a","num_speculative_tokens":4,"prompt_lookup_max":3})", "ngram");
  expect_refused(R"({"method":7,"num_speculative_tokens":4})", "method");
  expect_refused(R"({"method":"ngram","num_speculative_tokens":4,"adaptive":1})", "adaptive");
}

// Another tokenizer and one token more.
class LongerTokenizer final : public Tokenizer {
 public:
  explicit LongerTokenizer(const Tokenizer& base) : base_(base) {}
  std::vector<Token> encode(std::string_view text, bool special) const override {
    return base_.encode(text, special);
  }
  std::string_view bytes(Token id, bool skip) const override { return base_.bytes(id, skip); }
  std::string decode(std::span<const Token> ids, bool skip) const override {
    return base_.decode(ids, skip);
  }
  std::string_view piece(Token id) const override {
    return id == base_.vocabulary_size() ? "more" : base_.piece(id);
  }
  std::optional<Token> find(std::string_view piece) const override { return base_.find(piece); }
  int vocabulary_size() const override { return base_.vocabulary_size() + 1; }
  bool is_special(Token id) const override { return base_.is_special(id); }
  std::optional<Token> bos() const override { return base_.bos(); }
  std::optional<Token> eos() const override { return base_.eos(); }
  bool strips_first_space() const override { return base_.strips_first_space(); }

 private:
  const Tokenizer& base_;
};

TEST(SpeculativeConfig, RefusesADraftModelOfAnotherVocabulary) {
  const auto bytes = make_byte_tokenizer();
  EXPECT_TRUE(check_same_vocabulary(*bytes, *bytes).ok());
  const LongerTokenizer longer(*bytes);
  for (const auto& [target, draft] :
       {std::pair<const Tokenizer*, const Tokenizer*>(bytes.get(), &longer),
        {&longer, bytes.get()}}) {
    const Status status = check_same_vocabulary(*target, *draft);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.message().find("another vocabulary: token 257"), std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace kun
