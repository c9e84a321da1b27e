#include "server/tool_grammar.h"

#include <gtest/gtest.h>

#include "text/byte_tokenizer.h"
#include "text/test_grammar.h"

namespace kun {
namespace {

class ToolGrammarTest : public ::testing::Test {
 protected:
  ToolGrammarTest() : tokenizer_(make_byte_tokenizer()) {
    auto made = GrammarVocabulary::create(*tokenizer_);
    CHECK(made.has_value());
    vocabulary_ = *std::move(made);
    tools_ = {
        {"weather",
         R"({"type":"object","properties":{"city":{"type":"string"},
             "days":{"type":"integer","maximum":9},"unit":{"enum":["C","F"]}},"required":["city"],
             "additionalProperties":false})"},
        {"stop", ""},
    };
  }

  bool says(ToolCallFormat format, std::string_view text, ToolChoice choice = {}) {
    const auto source = grammar_for_tools(tools_, choice, format, *tokenizer_);
    EXPECT_TRUE(source) << source.error().message();
    if (!source) return false;
    const auto grammar = vocabulary_->compile(*source);
    EXPECT_TRUE(grammar) << grammar.error().message() << source->text;
    return grammar && matches(**grammar, *tokenizer_, text);
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<const GrammarVocabulary> vocabulary_;
  std::vector<ToolSchema> tools_;
};

TEST_F(ToolGrammarTest, SpeaksHermes) {
  constexpr auto kFormat = ToolCallFormat::kHermes;
  const std::string weather =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": "
      "3}}\n</tool_call>";
  const std::string stop =
      "<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"a\":1}}\n</tool_call>";
  EXPECT_TRUE(says(kFormat, weather));
  EXPECT_TRUE(says(kFormat, weather + "\n" + stop));
  EXPECT_FALSE(says(kFormat, weather + "\n" + stop, {.name = "", .parallel = false}));
  EXPECT_FALSE(says(kFormat, stop, {.name = "weather"}));
  EXPECT_FALSE(says(kFormat, ""));
  EXPECT_FALSE(says(kFormat, "Sure! " + weather));
  EXPECT_FALSE(
      says(kFormat, "<tool_call>\n{\"name\": \"weather\", \"arguments\": {}}\n</tool_call>"));
}

TEST_F(ToolGrammarTest, SpeaksLlama3) {
  constexpr auto kFormat = ToolCallFormat::kLlama3Json;
  EXPECT_TRUE(says(kFormat, R"({"name": "weather", "parameters": {"city":"x"}})"));
  EXPECT_TRUE(
      says(kFormat, R"({"name": "stop", "parameters": {}}; {"name": "stop", "parameters": {}})"));
  EXPECT_FALSE(says(kFormat, R"({"name": "weather", "parameters": {"days":1}})"));
}

TEST_F(ToolGrammarTest, SpeaksDeepSeekV3AndV31) {
  EXPECT_TRUE(says(ToolCallFormat::kDeepSeekV3,
                   "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
                   "```json\n{\"city\": \"上海\"}\n```<｜tool▁call▁end｜>\n"
                   "<｜tool▁call▁begin｜>function<｜tool▁sep｜>stop\n```json\n{}\n"
                   "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
  EXPECT_TRUE(says(ToolCallFormat::kDeepSeekV31,
                   "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": "
                   "\"上海\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
  EXPECT_FALSE(says(ToolCallFormat::kDeepSeekV31,
                    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": "
                    "1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"));
}

TEST_F(ToolGrammarTest, SpeaksDsml) {
  for (const auto& [format, block] : {std::pair{ToolCallFormat::kDeepSeekV32, "function_calls"},
                                      std::pair{ToolCallFormat::kDeepSeekV4, "tool_calls"}}) {
    const std::string open = std::string("<｜DSML｜") + block + ">\n";
    const std::string close = std::string("</｜DSML｜") + block + ">";
    const std::string city =
        "<｜DSML｜parameter name=\"city\" string=\"true\">a </b>\n\"x\"</｜DSML｜parameter>\n";
    const std::string days =
        "<｜DSML｜parameter name=\"days\" string=\"false\">7</｜DSML｜parameter>\n";
    const std::string unit =
        "<｜DSML｜parameter name=\"unit\" string=\"false\">\"C\"</｜DSML｜parameter>\n";
    const std::string begin = "<｜DSML｜invoke name=\"weather\">\n";
    const std::string end = "</｜DSML｜invoke>\n";
    EXPECT_TRUE(says(format, open + begin + city + end + close));
    EXPECT_TRUE(says(format, open + begin + city + days + unit + end + close));
    EXPECT_TRUE(says(format, open + begin + city + end + begin + city + unit + end + close));
    EXPECT_TRUE(says(format, open + "<｜DSML｜invoke name=\"stop\">\n" + end + close));
    EXPECT_FALSE(says(format, open + begin + days + end + close));
    EXPECT_FALSE(says(format, open + close));
    EXPECT_FALSE(says(format, open + begin + city + city + end + close));
  }
}

TEST_F(ToolGrammarTest, RefusesWhatItCannotHold) {
  const auto refused = [&](ToolSchema tool, ToolCallFormat format, ToolChoice choice = {}) {
    return !grammar_for_tools({&tool, 1}, choice, format, *tokenizer_).has_value();
  };
  EXPECT_TRUE(refused({"f", ""}, ToolCallFormat::kHermes, {.name = "g"}));
  EXPECT_TRUE(refused({"f\"", ""}, ToolCallFormat::kHermes));
  EXPECT_TRUE(refused({"", ""}, ToolCallFormat::kHermes));
  EXPECT_TRUE(refused({"f", R"({"anyOf":[{}]})"}, ToolCallFormat::kDeepSeekV4));
  EXPECT_TRUE(refused({"f", R"({"required":["x"]})"}, ToolCallFormat::kDeepSeekV4));
  EXPECT_TRUE(refused({"f", R"({"properties":{"a<b":{}}})"}, ToolCallFormat::kDeepSeekV4));
  EXPECT_TRUE(refused({"f", "{"}, ToolCallFormat::kDeepSeekV4));
  EXPECT_FALSE(grammar_for_tools({}, {}, ToolCallFormat::kHermes, *tokenizer_).has_value());
}

TEST_F(ToolGrammarTest, KeepsReferencesOfParametersThatAreTakenApart) {
  tools_ = {{"f", R"({"type":"object","properties":{"p":{"$ref":"#/$defs/point"}},"required":["p"],
                      "$defs":{"point":{"type":"array","items":{"type":"integer"},"minItems":2,
                                        "maxItems":2}}})"}};
  const auto text = [](std::string_view value) {
    return "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"p\" "
           "string=\"false\">" +
           std::string(value) + "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>";
  };
  EXPECT_TRUE(says(ToolCallFormat::kDeepSeekV4, text("[1,2]")));
  EXPECT_FALSE(says(ToolCallFormat::kDeepSeekV4, text("[1]")));
}

}  // namespace
}  // namespace kun
