// The encoders against the published ones: their own test vectors, and answers of the originals to
// further conversations.
#include "text/deepseek_encoder.h"

#include <gtest/gtest.h>
#include <simdjson.h>

#include <fstream>

#include "text/answer_syntax.h"
#include "text/python_json.h"

namespace kun {
namespace {

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(KUN_TEST_DATA) + "/encoders/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string json_text(simdjson::dom::element value) {
  return simdjson::minify(value);
}

struct Vector {
  std::string name;
  bool thinking = false;
  bool add_generation_prompt = true;
};

void expect_equal(const ChatTemplate& encoder, const std::string& family, const Vector& vector) {
  const std::string input_text = read_file(family + "_input_" + vector.name + ".json");
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.parse(input_text);
  std::string messages;
  std::string tools;
  if (root.is_array()) {
    messages = json_text(root);
  } else {
    messages = json_text(root["messages"]);
    simdjson::dom::element given;
    if (root["tools"].get(given) == simdjson::SUCCESS) tools = json_text(given);
  }
  ChatTemplateInput input;
  input.messages = messages;
  input.tools = tools;
  input.extra = vector.thinking ? R"({"thinking":true})" : "";
  input.add_generation_prompt = vector.add_generation_prompt;
  const Result<std::string> text = encoder.render(input);
  ASSERT_TRUE(text) << text.error().message();
  EXPECT_EQ(*text, read_file(family + "_output_" + vector.name + ".txt"))
      << family << " " << vector.name;
}

// Without the empty lines of the text about tools: the original that answered the further V3.2
// conversations leaves them out, DeepSeek's own vectors have them.
std::string squeeze(std::string text) {
  const std::size_t begin = text.find("## Tools");
  if (begin == std::string::npos) return text;
  for (std::size_t at = begin; (at = text.find("\n\n", at)) < text.find("<functions>");) {
    text.erase(at, 1);
  }
  return text;
}

void expect_generated(const ChatTemplate& encoder, const std::string& name) {
  const std::string file = read_file(name);
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.parse(file);
  int count = 0;
  for (const simdjson::dom::element result : root["results"].get_array()) {
    const simdjson::dom::element args = result["args"];
    const bool thinking = std::string_view(args["thinking_mode"]) == "thinking";
    std::string extra = "{\"thinking\":";
    extra += thinking ? "true" : "false";
    extra += bool(args["drop_thinking"]) ? ",\"drop_thinking\":true" : ",\"drop_thinking\":false";
    std::string_view effort;
    if (args["reasoning_effort"].get(effort) == simdjson::SUCCESS) {
      extra += ",\"reasoning_effort\":\"" + std::string(effort) + "\"";
    }
    extra += "}";
    const std::string messages = json_text(result["messages"]);
    ChatTemplateInput input;
    input.messages = messages;
    input.extra = extra;
    const Result<std::string> text = encoder.render(input);
    ASSERT_TRUE(text) << text.error().message();
    EXPECT_EQ(squeeze(*text), squeeze(std::string(std::string_view(result["out"]))))
        << std::string_view(result["case"]) << " " << extra;
    ++count;
  }
  EXPECT_GT(count, 20);
}

TEST(DeepSeekV32Encoder, EqualsThePublishedOne) {
  const auto encoder = make_deepseek_v32_encoder();
  expect_equal(*encoder, "v32", {"parity", true, true});
  expect_equal(*encoder, "v32", {"developer_tools", true, false});
  expect_generated(*encoder, "generated_v32.json");
}

TEST(DeepSeekV4Encoder, EqualsThePublishedOne) {
  const auto encoder = make_deepseek_v4_encoder();
  expect_equal(*encoder, "v4", {"1", true, true});
  expect_equal(*encoder, "v4", {"2", true, true});
  expect_equal(*encoder, "v4", {"3", true, true});
  expect_equal(*encoder, "v4", {"4", false, true});
  expect_equal(*encoder, "v4", {"developer_tools", true, false});
  expect_generated(*encoder, "generated_v4.json");
}

TEST(DeepSeekEncoders, TellHowTheirModelsAnswer) {
  const AnswerSyntax v32 = detect_answer_syntax(make_deepseek_v32_encoder()->source());
  EXPECT_EQ(v32.tools, ToolSyntax::kDeepSeekV32);
  EXPECT_EQ(v32.reasoning, ReasoningSyntax::kDeepSeekV3);
  const AnswerSyntax v4 = detect_answer_syntax(make_deepseek_v4_encoder()->source());
  EXPECT_EQ(v4.tools, ToolSyntax::kDeepSeekV4);
  EXPECT_EQ(v4.reasoning, ReasoningSyntax::kDeepSeekV3);
}

TEST(DeepSeekEncoders, RefuseConversationsThatAreNone) {
  for (const auto& encoder : {make_deepseek_v32_encoder(), make_deepseek_v4_encoder()}) {
    for (const std::string_view messages :
         {"[]", "{}", "[", "", R"([{"role":"narrator","content":"x"}])",
          R"([{"role":"developer","content":""}])"}) {
      ChatTemplateInput input;
      input.messages = messages;
      EXPECT_FALSE(encoder->render(input)) << messages;
    }
    // Whatever the members are, nothing breaks.
    ChatTemplateInput odd;
    odd.messages = R"([1, null, {"role":"user","content":[1],"tool_calls":[1,{"function":7}]},
        {"role":"assistant","tool_calls":[{"function":{"name":1,"arguments":[1]}}]}])";
    EXPECT_FALSE(encoder->render(odd));
  }
  ChatTemplateInput stray;
  stray.messages = R"([{"role":"user","content":"x"},{"role":"tool","content":"7"}])";
  EXPECT_FALSE(make_deepseek_v32_encoder()->render(stray));
}

TEST(PythonJson, WritesWhatPythonWrites) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"a":[1,2.0,1e16,1e-5,0.0001,1e100,-0.5,123456789012345680],"b":{"c":null,"d":true}})",
       R"({"a": [1, 2.0, 1e+16, 1e-05, 0.0001, 1e+100, -0.5, 123456789012345680], )"
       R"("b": {"c": null, "d": true}})"},
      {R"(["\u00e9\u4e0a\"\\\/\b\f\n\r\t\u0001\u007f"])",
       "[\"é上\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7f\"]"},
      {"[]", "[]"},
      {"{}", "{}"},
      {"18446744073709551615", "18446744073709551615"}};
  for (const auto& [json, expected] : cases) {
    EXPECT_EQ(python_json(json), expected);
  }
}

}  // namespace
}  // namespace kun
