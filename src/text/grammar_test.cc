#include "text/grammar.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>

#include "text/byte_tokenizer.h"
#include "text/constrain_after.h"
#include "text/gbnf.h"
#include "text/grammar_compiler.h"
#include "text/test_grammar.h"

namespace kun {
namespace {

using ::testing::HasSubstr;
using Ending = TokenConstraint::Ending;

class GrammarTest : public ::testing::Test {
 protected:
  GrammarTest() : tokenizer_(make_byte_tokenizer()) {
    auto made = GrammarVocabulary::create(*tokenizer_);
    CHECK(made.has_value());
    vocabulary_ = *std::move(made);
  }

  std::shared_ptr<const Grammar> compile(const GrammarSource& source) {
    auto compiled = vocabulary_->compile(source);
    EXPECT_TRUE(compiled) << compiled.error().message();
    return compiled ? *compiled : nullptr;
  }

  Status refusal(const GrammarSource& source) {
    const auto compiled = vocabulary_->compile(source);
    return compiled ? Status() : compiled.error();
  }

  bool matches(const Grammar& grammar, std::string_view text) {
    return kun::matches(grammar, *tokenizer_, text);
  }

  std::vector<Token> ids(std::string_view text) { return tokenizer_->encode(text, false); }

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const GrammarVocabulary> vocabulary_;
};

TEST_F(GrammarTest, HoldsTextToASchema) {
  const auto grammar = compile(json_source(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":3},
          "age":{"type":"integer","minimum":0}},"required":["name"],
          "additionalProperties":false})"));
  EXPECT_TRUE(matches(*grammar, R"({"name":"Ann","age":42})"));
  EXPECT_TRUE(matches(*grammar, "{ \"name\" : \"\xc3\xa4\xc3\xb6\xc3\xbc\" }"));
  EXPECT_FALSE(matches(*grammar, R"({"name":"Anna"})"));
  EXPECT_FALSE(matches(*grammar, R"({"name":"Ann","age":-1})"));
  EXPECT_FALSE(matches(*grammar, R"({"age":1})"));
  EXPECT_FALSE(matches(*grammar, R"({"name":"Ann","x":1})"));
  EXPECT_FALSE(matches(*grammar, R"({"name":"Ann")"));
}

TEST_F(GrammarTest, HoldsTextToARegularExpressionAndToLark) {
  const auto regex = compile(text_source(GrammarKind::kRegex, "[a-c]{2}/\\d+"));
  EXPECT_TRUE(matches(*regex, "ab/12"));
  EXPECT_FALSE(matches(*regex, "ad/12"));
  EXPECT_FALSE(matches(*regex, "ab/"));
  const auto lark = compile(text_source(GrammarKind::kLark,
                                        "start: greeting \", \" NAME\n"
                                        "greeting: \"Hi\" | \"Hello\"\nNAME: /[A-Z][a-z]*/"));
  EXPECT_TRUE(matches(*lark, "Hello, Bob"));
  EXPECT_FALSE(matches(*lark, "Hallo, Bob"));
}

TEST_F(GrammarTest, HasNoWhiteSpaceAndNoFurtherPropertiesWhereThatIsWanted) {
  GrammarSource source = json_source(R"({"properties":{"a":{"type":"integer"}},"type":"object"})");
  source.compact = true;
  source.no_additional_properties = true;
  const auto grammar = compile(source);
  EXPECT_TRUE(matches(*grammar, R"({"a":1})"));
  EXPECT_FALSE(matches(*grammar, R"({"a": 1})"));
  EXPECT_FALSE(matches(*grammar, R"({"b":1})"));
}

TEST_F(GrammarTest, NeverTakesTheEndTokenForText) {
  const auto grammar = compile(text_source(GrammarKind::kRegex, "(?s:.*)"));
  const auto state = grammar->begin();
  EXPECT_FALSE(allows(mask_of(*state, 257), kByteTokenizerEnd));
  EXPECT_TRUE(takes(*state, ids("<end>"), 257));
  EXPECT_FALSE(state->advance(kByteTokenizerEnd).ok());
}

TEST_F(GrammarTest, KnowsWhereTextMayEndAndWhereItMust) {
  const auto grammar = compile(text_source(GrammarKind::kRegex, "ab?c?"));
  const auto state = grammar->begin();
  EXPECT_EQ(state->ending(), Ending::kNotYet);
  ASSERT_TRUE(takes(*state, ids("a"), 257));
  EXPECT_EQ(state->ending(), Ending::kAllowed);
  ASSERT_TRUE(takes(*state, ids("c"), 257));
  EXPECT_EQ(state->ending(), Ending::kReached);
  EXPECT_EQ(mask_of(*state, 257), std::vector<std::uint32_t>(9, 0));
}

TEST_F(GrammarTest, ClonesAndTakesTokensBack) {
  const auto grammar = compile(json_source(R"({"enum":["abc","abd"]})"));
  const auto state = grammar->begin();
  ASSERT_TRUE(takes(*state, ids("\"ab"), 257));
  const auto other = state->clone();
  EXPECT_TRUE(takes(*state, ids("c\""), 257));
  EXPECT_TRUE(takes(*other, ids("d\""), 257));
  EXPECT_EQ(other->ending(), Ending::kReached);
  ASSERT_TRUE(other->rollback(2).ok());
  EXPECT_EQ(other->ending(), Ending::kNotYet);
  EXPECT_TRUE(takes(*other, ids("c\""), 257));
  ASSERT_TRUE(other->rollback(5).ok());
  EXPECT_TRUE(takes(*other, ids("\"abd\""), 257));
  EXPECT_FALSE(other->rollback(6).ok());
}

TEST_F(GrammarTest, RefusesWhatItCouldNotEnforceAndSaysWhat) {
  EXPECT_THAT(refusal(json_source(R"({"items":{"not":{"type":"null"}}})")).message(),
              HasSubstr("\"not\" (at #/items)"));
  EXPECT_THAT(refusal(json_source(R"({"uniqueItems":true})")).message(), HasSubstr("uniqueItems"));
  EXPECT_TRUE(refusal(json_source(R"({"uniqueItems":false})")).ok());
  EXPECT_EQ(refusal(json_source("{")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(json_source(R"({"type":"something"})")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(text_source(GrammarKind::kRegex, "(")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(text_source(GrammarKind::kLark, "start: x")).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(json_source("false")).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(json_source(R"({"x-guidance":{"lenient":true},"not":{}})")).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(GrammarTest, StaysRefusedAfterARefusalAndUsableByOthers) {
  const auto grammar = compile(json_source("true"));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(refusal(json_source(R"({"not":{"x":1}})")).ok());
  EXPECT_TRUE(matches(*grammar, R"([1,{"a":null}])"));
}

TEST_F(GrammarTest, IsTheSameOnlyForTheSameDemand) {
  GrammarSource a = json_source("{}");
  GrammarSource b = a;
  EXPECT_EQ(a.key(), b.key());
  b.compact = true;
  EXPECT_NE(a.key(), b.key());
  b = a;
  b.schemas = {"{", "}"};
  EXPECT_NE(a.key(), b.key());
  EXPECT_NE(text_source(GrammarKind::kLark, "a").key(),
            text_source(GrammarKind::kRegex, "a").key());
}

TEST_F(GrammarTest, LeavesThoughtsFreeUntilTheirEnd) {
  const auto grammar = compile(json_source(R"({"type":"integer"})"));
  const auto state = constrain_after(make_end_mark("</think>", *tokenizer_), grammar->begin());
  EXPECT_EQ(state->ending(), Ending::kNotYet);
  ASSERT_TRUE(takes(*state, ids("{ <</thin </think"), 257));
  EXPECT_EQ(state->ending(), Ending::kNotYet);
  ASSERT_TRUE(takes(*state, ids(">"), 257));
  EXPECT_FALSE(allows(mask_of(*state, 257), 'x'));
  const auto copy = state->clone();
  ASSERT_TRUE(takes(*state, ids("17"), 257));
  EXPECT_EQ(state->ending(), Ending::kAllowed);
  ASSERT_TRUE(state->rollback(3).ok());  // into the mark
  EXPECT_TRUE(takes(*state, ids("x</think>5"), 257));
  EXPECT_TRUE(takes(*copy, ids("8"), 257));
}

TEST_F(GrammarTest, TranslatesGbnf) {
  const auto source = gbnf_to_lark(
      "# a list of names\nroot ::= item (\", \" item)* end?\n"
      "item ::= [A-Z] [a-z/]{1,3} |\n  \"\\\"\" [^\"\\\\]* \"\\\"\"\nend ::= \"\\u00e4\" | "
      "\".\"\n");
  ASSERT_TRUE(source) << source.error().message();
  const auto grammar = compile(*source);
  EXPECT_TRUE(matches(*grammar, "Bob, Al/\xc3\xa4"));
  EXPECT_TRUE(matches(*grammar, "\"any thing\", Bo."));
  EXPECT_FALSE(matches(*grammar, "B"));
  EXPECT_FALSE(matches(*grammar, "Robert"));
}

TEST_F(GrammarTest, RefusesGbnfThatCannotBe) {
  for (const std::string_view text :
       {"Root ::= \"a\"", "root ::= \"a", "root ::= [", "root ::= (\"a\"", "root ::= other",
        "root ::= \"a\"\nroot ::= \"b\"", "root := \"a\" ::=", "root ::= \"\\uD800\"",
        "::=", "root ::= []", "root ::= \"a\"{x}", "root ::= \"\\"}) {
    EXPECT_FALSE(gbnf_to_lark(text)) << text;
  }
  const std::string deep = "root ::= " + std::string(30'000, '(') + "\"a\"";
  EXPECT_FALSE(gbnf_to_lark(deep));
}

std::string repeated(std::string_view piece, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += piece;
  return text;
}

// Each is refused, or compiled to something that is small to use; none takes long or much.
TEST_F(GrammarTest, BoundsWhatBombsCost) {
  std::vector<GrammarSource> bombs;
  for (const std::string regex :
       {"(a+)+b", "(a|a)*b", "(a|aa)+$", "a{1000}{1000}", "((a{100}){100}){100}", "\\p{L}{0,5000}",
        "(.*)*(.*)*(.*)*x", "(?:a?){500}a{500}", "[a-z]{1,100000}", "(x+x+)+y", "a{4294967296}"}) {
    bombs.push_back(text_source(GrammarKind::kRegex, regex));
  }
  bombs.push_back(text_source(GrammarKind::kRegex, repeated("(", 30'000)));
  bombs.push_back(text_source(GrammarKind::kRegex, repeated("(", 5'000) + repeated(")", 5'000)));
  bombs.push_back(text_source(GrammarKind::kRegex, repeated("(a|b)?", 20'000)));
  for (const std::string_view gbnf :
       {"root ::= root | root root", "root ::= root", "root ::= a\na ::= b\nb ::= a",
        "root ::= root root | \"a\"", "root ::= (\"\")*", "root ::= a*\na ::= b*\nb ::= \"\"?",
        "root ::= [a]{1,100000}"}) {
    auto lark = gbnf_to_lark(gbnf);
    if (lark) bombs.push_back(*std::move(lark));
  }
  bombs.push_back(text_source(GrammarKind::kLark, "start: " + repeated("(", 20'000) + "\"a\""));
  bombs.push_back(json_source(R"({"$ref":"#"})"));
  bombs.push_back(json_source(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},
                                  "$ref":"#/$defs/a"})"));
  bombs.push_back(json_source(R"({"type":"array","minItems":1000000000,"items":{"const":1}})"));
  bombs.push_back(json_source(R"({"type":"string","minLength":100000,"maxLength":1000000000})"));
  bombs.push_back(json_source(R"({"type":"string","pattern":"^(a+)+b$"})"));
  bombs.push_back(json_source(repeated(R"({"items":)", 20'000) + "{}" + repeated("}", 20'000)));
  bombs.push_back(
      json_source(repeated(R"({"anyOf":[{"type":"null"},)", 300) + "{}" + repeated("]}", 300)));
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 20'000; ++i) wide += "\"p" + std::to_string(i) + "\":{\"type\":\"string\"},";
  wide.back() = '}';
  bombs.push_back(json_source(wide + "}"));
  std::string choices = R"({"enum":[)";
  for (int i = 0; i < 50'000; ++i) choices += std::to_string(i) + ",";
  choices.back() = ']';
  bombs.push_back(json_source(choices + "}"));

  for (const GrammarSource& bomb : bombs) {
    const auto begin = std::chrono::steady_clock::now();
    const auto compiled = vocabulary_->compile(bomb);
    if (compiled) {
      EXPECT_LT((*compiled)->bytes(), std::size_t{256} << 20U) << bomb.key().substr(0, 80);
      const auto state = (*compiled)->begin();
      std::vector<std::uint32_t> mask(9);
      for (int i = 0; i < 30 && state->ending() != Ending::kReached; ++i) {
        if (!state->fill_mask(mask).ok() || !state->advance('a').ok()) break;
      }
    } else {
      EXPECT_EQ(compiled.error().code(), StatusCode::kInvalidArgument);
      EXPECT_FALSE(compiled.error().message().empty());
    }
    // About a second; far more under a sanitizer on a busy machine.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30))
        << bomb.key().substr(0, 80);
  }
  EXPECT_TRUE(matches(*compile(json_source("true")), "[1]")) << "the next is served as ever";
}

TEST_F(GrammarTest, CompilerKeepsTheGrammarsUsedLastWithinItsBound) {
  GrammarCompilerLimits limits;
  limits.cache_bytes_max = std::size_t{2} << 20U;
  GrammarCompiler compiler(*tokenizer_, limits);
  const auto first = compiler.compile_now(json_source(R"({"const":0})"));
  ASSERT_TRUE(first) << first.error().message();
  const auto again = compiler.compile_now(json_source(R"({"const":0})"));
  EXPECT_EQ(first->get(), again->get());
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(compiler.compile_now(json_source("{\"const\":" + std::to_string(i) + "}")));
  }
  const GrammarCompiler::Stats stats = compiler.stats();
  EXPECT_LE(stats.cached_bytes, limits.cache_bytes_max);
  EXPECT_LT(stats.cached_count, 100U);
  EXPECT_GT(stats.cached_count, 1U);
  EXPECT_GE(stats.compiled_count, 300U);
  EXPECT_GE(stats.hit_count, 2U);
  // Its states live on without it.
  EXPECT_TRUE(matches(**first, "0"));
}

TEST_F(GrammarTest, CompilerRefusesWhenItsLineIsFull) {
  GrammarCompilerLimits limits;
  limits.waiting_max = 0;
  GrammarCompiler compiler(*tokenizer_, limits);
  const auto refused = compiler.compile_now(json_source("{}"));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
}

TEST_F(GrammarTest, CompilerAnswersEveryoneWhenItEnds) {
  std::atomic<int> answered = 0;
  {
    GrammarCompiler compiler(*tokenizer_);
    for (int i = 0; i < 40; ++i) {
      compiler.compile(json_source("{\"minimum\":" + std::to_string(i) + "}"),
                       [&](const GrammarCompiler::Compiled&) { ++answered; });
    }
  }
  EXPECT_EQ(answered, 40);
}

}  // namespace
}  // namespace kun
