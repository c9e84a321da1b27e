// Recorded answers of the real services, said again by a scripted model: the events must come in
// the same order, with the same members of the same types.
#include <fstream>

#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

class RecordedStreamTest : public ServerFixture {
 protected:
  static std::vector<json::value> chunks(const std::string& name) {
    std::ifstream file(std::string(KUN_TEST_DATA) + "/recorded-streams/" + name);
    EXPECT_TRUE(file) << name;
    std::vector<json::value> all;
    for (std::string line; std::getline(file, line);) {
      if (!line.empty()) all.push_back(json::parse(line));
    }
    return all;
  }

  static json::value whole(const std::string& name) {
    std::ifstream file(std::string(KUN_TEST_DATA) + "/recorded-streams/" + name);
    EXPECT_TRUE(file) << name;
    return json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  }

  // What a model that thinks and calls like DeepSeek V3.1 has said.
  static std::string spoken(const std::vector<json::value>& recorded) {
    std::string reasoning;
    std::string content;
    std::string calls;
    for (const json::value& chunk : recorded) {
      if (chunk.at("choices").as_array().empty()) continue;
      const json::object& delta = chunk.at("choices").at(0).at("delta").as_object();
      append(delta.if_contains("reasoning_content"), reasoning);
      append(delta.if_contains("content"), content);
      if (const auto* list = delta.if_contains("tool_calls")) append_call(list->at(0), calls);
    }
    std::string text = reasoning.empty() ? "" : reasoning + "</think>";
    text += content;
    if (!calls.empty()) {
      text += "<｜tool▁calls▁begin｜>" + calls + "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    }
    return text;
  }

  static void append(const json::value* from, std::string& to) {
    if (from != nullptr && from->is_string()) to += from->as_string();
  }

  static void append_call(const json::value& call, std::string& calls) {
    const json::object& function = call.at("function").as_object();
    if (function.contains("name")) {
      calls += "<｜tool▁call▁begin｜>" + std::string(function.at("name").as_string());
      calls += "<｜tool▁sep｜>";
    }
    calls += function.at("arguments").as_string();
  }

  // The names and types of a value; numbers of any kind are one type.
  static std::string shape(const json::value& value) {
    if (const auto* object = value.if_object()) {
      std::string text = "{";
      for (const auto& member : *object) {
        text += std::string(member.key()) + ":" + shape(member.value()) + ",";
      }
      return text + "}";
    }
    if (const auto* array = value.if_array()) {
      return array->empty() ? "[]" : "[" + shape(array->front()) + "]";
    }
    if (value.is_number()) return "number";
    return value.is_string() ? "string" : value.is_bool() ? "bool" : "null";
  }

  // Shapes in order, each run of equal ones once.
  static std::vector<std::string> shapes(const std::vector<json::value>& values) {
    std::vector<std::string> all;
    for (const json::value& value : values) {
      if (all.empty() || all.back() != shape(value)) all.push_back(shape(value));
    }
    return all;
  }

  std::vector<json::value> stream(std::string_view path, std::string_view body) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    std::vector<json::value> events;
    for (const std::string& event : sse_data(response.body)) {
      if (event != "[DONE]") events.push_back(json::parse(event));
    }
    EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
    return events;
  }

  // Every member of `recorded` is in `ours`, with a value of the same type.
  static void expect_within(const json::value& recorded, const json::value& ours,
                            const std::string& where) {
    // Of features that this server has not: tiers, audio, predicted outputs, padding.
    static const std::set<std::string> kLeftOut = {"service_tier",
                                                   "obfuscation",
                                                   "annotations",
                                                   "audio_tokens",
                                                   "accepted_prediction_tokens",
                                                   "rejected_prediction_tokens"};
    if (const auto* object = recorded.if_object()) {
      ASSERT_TRUE(ours.is_object()) << where;
      for (const auto& member : *object) {
        const std::string name(member.key());
        if (kLeftOut.contains(name)) continue;
        const json::value* own = ours.as_object().if_contains(name);
        ASSERT_NE(own, nullptr) << where << "." << name;
        expect_within(member.value(), *own, where + "." + name);
      }
    } else if (recorded.is_array()) {
      ASSERT_TRUE(ours.is_array()) << where;
      ASSERT_EQ(recorded.as_array().empty(), ours.as_array().empty()) << where;
      if (!recorded.as_array().empty()) {
        expect_within(recorded.at(0), ours.at(0), where + "[0]");
      }
    } else {
      EXPECT_EQ(shape(recorded), shape(ours)) << where;
    }
  }
};

constexpr std::string_view kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{}}}])";

TEST_F(RecordedStreamTest, DeepSeeksPathsStreamWhatDeepSeekStreams) {
  syntax_ = {ReasoningSyntax::kDeepSeekV3, ToolSyntax::kDeepSeekV31};
  start();
  for (const std::string name : {"deepseek-text", "deepseek-reasoning", "deepseek-tool-call"}) {
    const std::vector<json::value> recorded = chunks(name + ".chunks.txt");
    const bool thinks = name != "deepseek-text";
    template_.ending = thinks ? "<think>" : "</think>";
    generator_.play(spoken(recorded));
    std::string body = R"({"messages":[{"role":"user","content":"hi"}],"stream":true,)";
    body += std::string(kTools) + (thinks ? "}" : R"(,"thinking":{"type":"disabled"}})");
    const std::vector<json::value> ours = stream("/chat/completions", body);
    EXPECT_EQ(shapes(ours), shapes(recorded)) << name;
    EXPECT_EQ(spoken(ours), spoken(recorded)) << name;
  }
}

TEST_F(RecordedStreamTest, DeepSeeksPathsAnswerWhatDeepSeekAnswers) {
  syntax_ = {ReasoningSyntax::kDeepSeekV3, ToolSyntax::kDeepSeekV31};
  start();
  for (const std::string name :
       {"deepseek-text", "deepseek-reasoning", "deepseek-tool-call", "deepseek-json"}) {
    const json::value recorded = whole(name + ".json");
    json::object delta = recorded.at("choices").at(0).at("message").as_object();
    const json::value as_chunk = {{"choices", {{{"delta", delta}}}}};
    template_.ending = name == "deepseek-text" ? "</think>" : "<think>";
    generator_.play(spoken({as_chunk}));
    const std::string body =
        R"({"messages":[{"role":"user","content":"hi"}],)" + std::string(kTools) + "}";
    const ClientResponse response = post("/chat/completions", body);
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(shape(response.json()), shape(recorded)) << name;
    EXPECT_EQ(spoken({json::value{
                  {"choices", {{{"delta", response.json().at("choices").at(0).at("message")}}}}}}),
              spoken({as_chunk}));
  }
}

TEST_F(RecordedStreamTest, TheOpenAiPathsHoldAllThatOpenAiSends) {
  start();
  const std::vector<json::value> recorded = chunks("openai-text.chunks.txt");
  generator_.play(spoken(recorded));
  const std::vector<json::value> ours =
      stream("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],
             "stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_GE(ours.size(), 4U);
  // The opening, text, the reason, usage.
  expect_within(recorded[0], ours[0], "first");
  expect_within(recorded[1], ours[1], "second");
  expect_within(recorded[recorded.size() - 2], ours[ours.size() - 2], "reason");
  expect_within(recorded.back(), ours.back(), "usage");
  EXPECT_EQ(spoken(ours), spoken(recorded));
  const json::value answer = whole("openai-text.json");
  expect_within(
      answer,
      post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})").json(),
      "answer");
}

TEST_F(RecordedStreamTest, TheCompletionsPathHoldsAllThatOpenAiSends) {
  start();
  const std::vector<json::value> recorded = chunks("openai-completion-text.chunks.txt");
  const std::vector<json::value> ours = stream(
      "/v1/completions",
      R"({"prompt":"hi","max_tokens":3,"stream":true,"stream_options":{"include_usage":true}})");
  expect_within(recorded[0], ours[0], "first");
  expect_within(recorded[recorded.size() - 2], ours[ours.size() - 2], "reason");
  expect_within(recorded.back(), ours.back(), "usage");
  expect_within(whole("openai-completion-text.json"),
                post("/v1/completions", R"({"prompt":"hi","max_tokens":3})").json(), "answer");
}

}  // namespace
}  // namespace kun
