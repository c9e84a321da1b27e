// What clients demand of the form of an answer, over real sockets; the scripted generator shows the
// constraint that reaches the engine.
#include <gmock/gmock.h>

#include "server/server_fixture.h"

namespace kun {
namespace {

using ::testing::HasSubstr;

class StructuredOutputTest : public ServerFixture {
 protected:
  StructuredOutputTest() {
    generator_.play([this](const GenerateRequest& request) {
      constraint_ = request.constraint;
      return Script{};
    });
  }

  ClientResponse chat(std::string_view extra) {
    return post("/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"hi"}],)" + std::string(extra) + "}");
  }
  ClientResponse complete(std::string_view extra) {
    return post("/v1/completions", R"({"prompt":"hi",)" + std::string(extra) + "}");
  }

  // Whether the last request's answer may be `text`.
  bool allowed(std::string_view text) const {
    if (constraint_ == nullptr) {
      ADD_FAILURE() << "the request reached the engine without a constraint";
      return false;
    }
    const auto state = constraint_->clone();
    for (const char c : text) {
      if (!state->advance(static_cast<unsigned char>(c)).ok()) return false;
    }
    return state->ending() != TokenConstraint::Ending::kNotYet;
  }

  std::shared_ptr<const TokenConstraint> constraint_;
};

TEST_F(StructuredOutputTest, ReadsEveryWayToDemandJson) {
  start();
  constexpr std::string_view kSchema =
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})";
  const std::string schema(kSchema);
  const std::string quoted =
      R"("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},)"
      R"(\"required\":[\"a\"]}")";
  for (const std::string& extra :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,
            "schema":)" +
            schema + "}}",
        R"("structured_outputs":{"json":)" + schema + "}",
        R"("structured_outputs":{"json":)" + quoted + "}", R"("guided_json":)" + schema,
        R"("guided_json":)" + quoted, R"("json_schema":)" + schema}) {
    for (const bool in_chat : {true, false}) {
      constraint_ = nullptr;
      const ClientResponse response = in_chat ? chat(extra) : complete(extra);
      ASSERT_EQ(response.status, 200) << extra << response.body;
      EXPECT_TRUE(allowed(R"({"a":1})")) << extra;
      EXPECT_FALSE(allowed(R"({"a":"1"})")) << extra;
      EXPECT_FALSE(allowed(R"({})")) << extra;
    }
  }
}

TEST_F(StructuredOutputTest, ReadsAnyObjectRegexChoiceAndGrammar) {
  start();
  struct Case {
    std::string_view extra, good, bad;
  };
  for (const Case& each : {
           Case{R"("response_format":{"type":"json_object"})", R"({"x":[1]})", "[]"},
           Case{R"("structured_outputs":{"json_object":true})", "{}", "1"},
           Case{R"("structured_outputs":{"regex":"a+b"})", "aab", "b"},
           Case{R"("guided_regex":"a+b")", "aab", "aa"},
           Case{R"("structured_outputs":{"choice":["yes","no \"way\""]})", "no \"way\"", "maybe"},
           Case{R"("guided_choice":["1","22"])", "22", "2"},
           Case{R"("structured_outputs":{"grammar":"start: \"a\" /b+/"})", "abb", "a"},
           Case{R"("guided_grammar":"root ::= \"a\" [bc]+")", "abc", "ad"},
           Case{R"("ebnf":"root ::= \"a\"")", "a", "b"},
           Case{R"("structured_outputs":{"json":{"type":"array"},"disable_any_whitespace":true})",
                "[1,2]", "[1, 2]"},
           Case{R"("guided_json":{"type":"array"},"guided_whitespace_pattern":" ")", "[ 1]",
                "[\n1]"},
       }) {
    constraint_ = nullptr;
    const ClientResponse response = complete(each.extra);
    ASSERT_EQ(response.status, 200) << each.extra << response.body;
    EXPECT_TRUE(allowed(each.good)) << each.extra;
    EXPECT_FALSE(allowed(each.bad)) << each.extra;
  }
}

TEST_F(StructuredOutputTest, ReadsStructuralTagsOfBothNotations) {
  start();
  for (const std::string_view tag :
       {R"({"type":"structural_tag","structures":[{"begin":"<f=a>","schema":{"type":"integer"},
            "end":"</f>"},{"begin":"<f=b>","schema":{"type":"null"},"end":"</f>"}],
            "triggers":["<f="]})",
        R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f="],"tags":[
            {"begin":"<f=a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},
             "end":"</f>"},{"begin":"<f=b>","content":{"type":"const_string","value":"null"},
             "end":"</f>"}]}})"}) {
    const ClientResponse response = chat("\"response_format\":" + std::string(tag));
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_TRUE(allowed("free text"));
    EXPECT_TRUE(allowed("so <f=a>12</f> and <f=b>null</f> it is"));
    EXPECT_FALSE(allowed("so <f=a>null</f>"));
    EXPECT_FALSE(allowed("so <f=c>"));
  }
}

TEST_F(StructuredOutputTest, LeavesTextFree) {
  start();
  ASSERT_EQ(chat(R"("response_format":{"type":"text"})").status, 200);
  EXPECT_EQ(constraint_, nullptr);
  ASSERT_EQ(chat(R"("response_format":null,"guided_json":null)").status, 200);
  EXPECT_EQ(constraint_, nullptr);
}

TEST_F(StructuredOutputTest, RefusesWhatMakesNoSenseAndStaysAlive) {
  start();
  std::string deep = R"("guided_json":)";
  for (int i = 0; i < 25; ++i) deep += R"({"items":)";
  deep += R"({"not":{}})" + std::string(25, '}');
  const std::string megabyte =
      R"("guided_json":{"description":")" + std::string(std::size_t{1} << 20U, 'x') + "\"}";
  const std::vector<std::string> cases = {
      R"("response_format":{"type":"xml"})",
      R"("response_format":{"type":"json_schema"})",
      R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})",
      R"("response_format":{"type":"json_schema","json_schema":{"schema":[]}})",
      R"("response_format":"json")",
      R"("response_format":{"type":"json_object"},"guided_regex":"a")",
      R"("structured_outputs":{"json":{},"regex":"a"})",
      R"("structured_outputs":{})",
      R"("structured_outputs":{"jsonn":{}})",
      R"("guided_json":"{")",
      R"("guided_json":{"type":"something"})",
      R"("guided_json":{"$ref":"#/nowhere"})",
      R"("guided_json":{"minimum":"x"})",
      R"("guided_regex":"(")",
      R"("guided_regex":"[")",
      R"("guided_regex":"\\")",
      R"("guided_regex":"{{…}}")",
      R"("guided_json":{"type":"string","pattern":"a\\"})",
      R"("structured_outputs":{"json":{},"whitespace_pattern":" \\"})",
      R"("guided_regex":"")",
      R"("guided_regex":"(?=a)b")",
      R"("guided_choice":[])",
      R"("guided_choice":[""])",
      R"("guided_choice":[1])",
      R"("guided_grammar":"Root ::= \"a\"")",
      R"("guided_grammar":"start")",
      R"("structured_outputs":{"structural_tag":{"structures":[]}})",
      R"("structured_outputs":{"structural_tag":"{"})",
      R"("structured_outputs":{"structural_tag":{"format":{"type":"magic"}}})",
      deep,
      megabyte,
  };
  for (const std::string& extra : cases) {
    const ClientResponse response = complete(extra);
    EXPECT_EQ(response.status, 400) << extra.substr(0, 200) << response.body;
  }
  EXPECT_EQ(generator_.running_count(), 0);
  EXPECT_EQ(complete(R"("guided_regex":"a")").status, 200);
}

TEST_F(StructuredOutputTest, NamesTheKeywordThatCouldNotBeEnforced) {
  start();
  const ClientResponse response = chat(
      R"("response_format":{"type":"json_schema","json_schema":{"name":"x","schema":
         {"properties":{"a":{"type":"array","contains":{"const":1}}}}}})");
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("contains"));
  EXPECT_THAT(response.body, HasSubstr("#/properties/a"));
  EXPECT_THAT(response.body, HasSubstr("BadRequestError"));
}

TEST_F(StructuredOutputTest, NamesTheFieldWhoseGrammarDoesNotCompile) {
  syntax_.tools = ToolSyntax::kHermes;
  start();
  const std::string tool = R"({"type":"function","function":{"name":"f","parameters":{"not":{}})";
  const std::string schema = R"({"type":"json_schema","json_schema":{"schema":{"not":{}}}})";
  for (const auto& [extra, param] : std::vector<std::pair<std::string, std::string>>{
           {R"("response_format":)" + schema, "response_format"},
           {R"("structured_outputs":{"regex":"("})", "structured_outputs"},
           {R"("guided_json":{"not":{}})", "guided_json"},
           {R"("tool_choice":"required","tools":[)" + tool + "}}]", "tools"},
           {R"("tools":[)" + tool + R"(,"strict":true}}])", "tools"}}) {
    const ClientResponse response = chat(extra);
    EXPECT_EQ(response.status, 400) << response.body;
    EXPECT_EQ(response.json().at("error").at("param"), param.c_str()) << response.body;
  }
}

TEST_F(StructuredOutputTest, SaysOfOneOfWhatClientsCanDo) {
  start();
  const ClientResponse response =
      complete(R"("guided_json":{"oneOf":[{"type":"integer"},{"type":"number"}]})");
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("anyOf"));
  EXPECT_THAT(response.body, ::testing::Not(HasSubstr("coerce"))) << "no option of ours";
}

TEST_F(StructuredOutputTest, RefusesInAStreamAsWell) {
  start();
  const ClientResponse response = complete(R"("stream":true,"guided_regex":"(")");
  EXPECT_EQ(response.status, 400) << response.body;
}

TEST_F(StructuredOutputTest, HoldsForCallsOfStrictToolsThatNobodyForces) {
  syntax_ = {ReasoningSyntax::kNone, ToolSyntax::kLlama3Json};
  start();
  const ClientResponse response = chat(
      R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":
         {"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}])");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_TRUE(allowed("Hello"));
  EXPECT_TRUE(allowed(R"({"name": "f", "parameters": {"a": 1}})"));
  EXPECT_FALSE(allowed(R"({"name": "f", "parameters": {"a": "1"}})"));
}

TEST_F(StructuredOutputTest, HoldsForEveryPromptOfABatch) {
  start();
  const ClientResponse response =
      post("/v1/completions", R"({"prompt":["a","b"],"n":2,"guided_regex":"Hello"})");
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json().at("choices").as_array().size(), 4U);
  EXPECT_TRUE(allowed("Hello"));
}

}  // namespace
}  // namespace kun
