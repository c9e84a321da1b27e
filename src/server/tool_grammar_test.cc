#include "server/tool_grammar.h"

#include <fmt/format.h>
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

// Calls as the tests above have them, of each syntax.
struct Spoken {
  ToolCallFormat format;
  std::string good;
  std::string bad;  // arguments of the strict tool that do not validate
  std::string lax;  // of the other tool, whatever they are
};

std::vector<Spoken> spoken_calls() {
  const auto hermes = [](std::string_view name, std::string_view arguments) {
    return fmt::format("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>", name,
                       arguments);
  };
  const auto v31 = [](std::string_view name, std::string_view arguments) {
    return fmt::format(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>",
        name, arguments);
  };
  const auto v4 = [](std::string_view name, std::string_view parameter, std::string_view is_string,
                     std::string_view value) {
    return fmt::format(
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"{}\">\n<｜DSML｜parameter name=\"{}\" "
        "string=\"{}\">{}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        name, parameter, is_string, value);
  };
  const auto llama3 = [](std::string_view name, std::string_view arguments) {
    return fmt::format(R"({{"name": "{}", "parameters": {}}})", name, arguments);
  };
  return {{ToolCallFormat::kHermes, hermes("weather", R"({"city": "Rome"})"),
           hermes("weather", R"({"days": 3})"), hermes("stop", R"({"x": [1]})")},
          {ToolCallFormat::kDeepSeekV31, v31("weather", R"({"city": "Rome"})"),
           v31("weather", "{}"), v31("stop", R"({"x": [1]})")},
          {ToolCallFormat::kDeepSeekV4, v4("weather", "city", "true", "Rome"),
           v4("weather", "days", "false", "3"), v4("stop", "x y", "false", "[1]")},
          {ToolCallFormat::kLlama3Json, llama3("weather", R"({"city": "Rome"})"),
           llama3("weather", R"({"days": 3})"), llama3("stop", R"({"x": [1]})")}};
}

TEST_F(ToolGrammarTest, LetsTheModelTalkUntilItCallsAStrictTool) {
  tools_[1].any_arguments = true;
  tools_[1].parameters = R"({"anyOf":[{}]})";  // not looked at
  const ToolChoice choice = {.name = "", .parallel = true, .other = OtherAnswer::kText};
  for (const Spoken& spoken : spoken_calls()) {
    if (spoken.format == ToolCallFormat::kLlama3Json) continue;  // its calls come first: below
    EXPECT_TRUE(says(spoken.format, "", choice));
    EXPECT_TRUE(says(spoken.format, "It is < 5 degrees.\n\nSure", choice));
    EXPECT_TRUE(says(spoken.format, spoken.good, choice)) << spoken.good;
    EXPECT_TRUE(says(spoken.format, "Let me see.\n" + spoken.good, choice)) << spoken.good;
    EXPECT_TRUE(says(spoken.format, "Let me see." + spoken.lax, choice)) << spoken.lax;
    EXPECT_FALSE(says(spoken.format, spoken.bad, choice)) << spoken.bad;
    EXPECT_FALSE(says(spoken.format, "Let me see." + spoken.bad, choice)) << spoken.bad;
    EXPECT_FALSE(says(spoken.format, spoken.good + "Done", choice));
  }
  const Spoken hermes = spoken_calls()[0];
  EXPECT_TRUE(says(hermes.format, "Both: " + hermes.good + "\n" + hermes.lax, choice));
  EXPECT_FALSE(says(hermes.format, hermes.good + "\n" + hermes.bad, choice));
  const ToolChoice one = {.name = "", .parallel = false, .other = OtherAnswer::kText};
  EXPECT_FALSE(says(hermes.format, hermes.good + "\n" + hermes.lax, one));
}

TEST_F(ToolGrammarTest, TellsTextFromLlama3sBareCalls) {
  constexpr auto kFormat = ToolCallFormat::kLlama3Json;
  tools_[1].any_arguments = true;
  tools_.push_back({"c++.run", ""});
  const ToolChoice choice = {.name = "", .parallel = true, .other = OtherAnswer::kText};
  const Spoken call = spoken_calls().back();
  for (const std::string_view text :
       {"", " ", "It is <5 degrees.", " <|x|> {}", "Sure: {\"name\": \"weather\"}", "{}",
        " {\"a\": [1, \"weather\"]}", R"({"name": "whether", "parameters": {"days": 1}})",
        R"({"a": "\"name\": \"weather\""})", "{ not JSON",
        R"({ "type": "function", "name" : "weather", "arguments":{"city":"Rome"} })"}) {
    EXPECT_TRUE(says(kFormat, text, choice)) << text;
  }
  for (const std::string& text :
       {call.good, call.lax, "\n " + call.good, "<|python_tag|>" + call.good,
        std::string("<|python_tag|>print(1)"), " <|python_tag|> " + call.lax,
        call.good + "; " + call.lax, call.lax + " ;\n" + call.good,
        std::string(R"({"name": "c++.run", "parameters": {}})")}) {
    EXPECT_TRUE(says(kFormat, text, choice)) << text;
  }
  for (const std::string& text :
       {call.bad, " " + call.bad, "<|python_tag|>" + call.bad, call.good + "; " + call.bad,
        call.lax + "; " + call.bad, call.good + "Done",
        std::string(R"({"parameters": {"days": 1}, "name":"weather"})"),
        std::string(R"({"name":"weather","parameters":{}})"), std::string(R"({"x": 1, "name" :
 "weather", "parameters": {}})")}) {
    EXPECT_FALSE(says(kFormat, text, choice)) << text;
  }
  const ToolChoice one = {.name = "", .parallel = false, .other = OtherAnswer::kText};
  EXPECT_FALSE(says(kFormat, call.good + "; " + call.lax, one));
}

TEST_F(ToolGrammarTest, LetsTheModelCallOrAnswerInAFormat) {
  GrammarSource format;
  format.schemas = {R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})"};
  GrammarSource word;
  word.kind = GrammarKind::kRegex;
  word.text = "yes|no";
  for (const Spoken& spoken : spoken_calls()) {
    for (const GrammarSource* one : {&format, &word}) {
      const ToolChoice choice = {
          .name = "", .parallel = true, .other = OtherAnswer::kFormat, .format = one};
      EXPECT_TRUE(says(spoken.format, spoken.good, choice)) << spoken.good;
      EXPECT_FALSE(says(spoken.format, spoken.bad, choice)) << spoken.bad;
      EXPECT_EQ(says(spoken.format, R"({"a": 1})", choice), one == &format);
      EXPECT_EQ(says(spoken.format, "yes", choice), one == &word);
      EXPECT_FALSE(says(spoken.format, R"({"a": "1"})", choice));
      EXPECT_FALSE(says(spoken.format, "I think", choice));
    }
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
  GrammarSource regex;
  regex.kind = GrammarKind::kRegex;
  regex.text = "a\\";
  EXPECT_TRUE(refused({"f", ""}, ToolCallFormat::kHermes,
                      {.name = "", .other = OtherAnswer::kFormat, .format = &regex}));
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
