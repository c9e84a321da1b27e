// Thoughts and tool calls over real sockets: what a stream adds up to is the whole answer, in every
// dialect, and the rules around tool_choice, prefixes and thoughts that must come back.
#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

constexpr std::string_view kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","description":null,
       "parameters":{"type":"object","properties":{"city":{"type":"string"}}}}},
       {"type":"function","function":{"name":"f"}}])";
constexpr std::string_view kTwoCalls =
    "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"上海\"}}\n"
    "</tool_call>\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

std::string chat(std::string_view extra) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + std::string(extra) + "}";
}

struct Heard {
  std::string reasoning;
  std::string content;
  std::vector<std::string> calls;  // name(arguments)
  std::set<std::string> ids;
  std::string reason;

  bool operator==(const Heard& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls &&
           reason == other.reason;
  }
};

std::ostream& operator<<(std::ostream& out, const Heard& heard) {
  out << "[" << heard.reasoning << "] [" << heard.content << "] " << heard.reason;
  for (const std::string& call : heard.calls) out << " " << call;
  return out;
}

void hear(Heard& heard, const json::object& delta) {
  const auto text = [&](const char* name) {
    const json::value* value = delta.if_contains(name);
    return value != nullptr && value->is_string() ? std::string(value->as_string()) : "";
  };
  heard.reasoning += text("reasoning_content");
  heard.content += text("content");
  const json::value* calls = delta.if_contains("tool_calls");
  for (std::size_t i = 0; calls != nullptr && i < calls->as_array().size(); ++i) {
    const json::object& call = calls->at(i).as_object();
    const json::object& function = call.at("function").as_object();
    if (function.contains("name")) {
      EXPECT_EQ(call.at("type"), "function");
      heard.ids.emplace(call.at("id").as_string());
      heard.calls.emplace_back(std::string(function.at("name").as_string()) + "(");
    }
    heard.calls.back() += function.at("arguments").as_string();
  }
}

class ThinkingTest : public ServerFixture {
 protected:
  Heard whole(std::string_view path, const std::string& body) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    const json::value answer = response.json();
    Heard heard;
    hear(heard, answer.at("choices").at(0).at("message").as_object());
    heard.reason = answer.at("choices").at(0).at("finish_reason").as_string();
    usage_ = answer.at("usage");
    return heard;
  }

  Heard streamed(std::string_view path, std::string body) {
    body.pop_back();
    const ClientResponse response = post(path, body + R"(,"stream":true})");
    EXPECT_EQ(response.status, 200) << response.body;
    Heard heard;
    int ends = 0;
    for (const std::string& event : sse_data(response.body)) {
      if (event == "[DONE]") break;
      const json::value chunk = json::parse(event);
      const json::value& choice = chunk.at("choices").at(0);
      hear(heard, choice.at("delta").as_object());
      if (!choice.at("finish_reason").is_string()) continue;
      heard.reason = choice.at("finish_reason").as_string();
      ++ends;
    }
    EXPECT_EQ(ends, 1);
    return heard;
  }

  void play(std::string text, int tokens_per_step = 1) {
    Script script;
    script.text = std::move(text);
    script.tokens_per_step = tokens_per_step;
    generator_.play(script);
  }

  json::value usage_;
};

TEST_F(ThinkingTest, AStreamAddsUpToTheAnswerHoweverItIsCut) {
  syntax_ = {ReasoningSyntax::kQwen3, ToolSyntax::kHermes};
  start();
  const Heard expected = {
      "Hm.", "I look.", {"get_weather({\"city\": \"上海\"}", "f({}"}, {}, "tool_calls"};
  for (const std::string_view path : {"/v1/chat/completions", "/chat/completions"}) {
    for (const int tokens_per_step : {1, 2, 3, 7, 1000}) {
      play("<think>\nHm.\n</think>\n\n" + std::string(kTwoCalls), tokens_per_step);
      EXPECT_EQ(whole(path, chat(kTools)), expected);
      const Heard stream = streamed(path, chat(kTools));
      EXPECT_EQ(stream, expected) << tokens_per_step;
      EXPECT_EQ(stream.ids.size(), 2U);
    }
  }
}

TEST_F(ThinkingTest, ADeltaHasThoughtsOrWordsOrACall) {
  syntax_ = {ReasoningSyntax::kQwen3, ToolSyntax::kHermes};
  start();
  play("<think>\nHm.\n</think>\n\n" + std::string(kTwoCalls), 1000);
  for (const std::string_view path : {"/v1/chat/completions", "/chat/completions"}) {
    for (const std::string extra : {"", R"(,"include_reasoning":false)"}) {
      std::vector<std::string> order;
      const ClientResponse response =
          post(path, chat(std::string(kTools) + R"(,"stream":true)" + extra));
      for (const std::string& event : sse_data(response.body)) {
        if (event == "[DONE]") break;
        const json::value chunk = json::parse(event);
        const json::object& delta = chunk.at("choices").at(0).at("delta").as_object();
        for (const std::string_view kind : {"reasoning_content", "content", "tool_calls"}) {
          const json::value* value = delta.if_contains(kind);
          if (value == nullptr || value->is_null() || *value == "") continue;
          order.emplace_back(kind);
        }
        order.emplace_back(";");
      }
      std::vector<std::string> expected = {
          ";", "reasoning_content", ";", "content", ";", "tool_calls", ";", "tool_calls", ";", ";"};
      if (!extra.empty()) expected.erase(expected.begin() + 1, expected.begin() + 3);
      EXPECT_EQ(order, expected) << response.body;
    }
  }
}

TEST_F(ThinkingTest, ThoughtsFollowTheTemplatesSwitch) {
  syntax_ = {ReasoningSyntax::kDeepSeekV3, ToolSyntax::kNone};
  start();
  play("a</think>b");
  template_.ending = "<think>";
  EXPECT_EQ(whole("/v1/chat/completions", chat(R"("n":1)")), (Heard{"a", "b", {}, {}, "stop"}));
  // One byte a token: the thought, and the mark but for its last byte, which ends it.
  EXPECT_EQ(usage_.at("completion_tokens_details").at("reasoning_tokens"), 8);
  template_.ending = "</think>";
  play("plain");
  EXPECT_EQ(streamed("/v1/chat/completions", chat(R"("chat_template_kwargs":{"thinking":false})")),
            (Heard{"", "plain", {}, {}, "stop"}));
  EXPECT_NE(generator_.last_prompt().find(R"("thinking":false)"), std::string::npos);
}

TEST_F(ThinkingTest, ThoughtsCanBeLeftOutOrLeftWhereTheyAre) {
  syntax_ = {ReasoningSyntax::kQwen3, ToolSyntax::kNone};
  start();
  play("<think>a</think>b");
  EXPECT_EQ(whole("/v1/chat/completions", chat(R"("include_reasoning":false)")),
            (Heard{"", "b", {}, {}, "stop"}));
  EXPECT_EQ(streamed("/v1/chat/completions", chat(R"("include_reasoning":false)")),
            (Heard{"", "b", {}, {}, "stop"}));
  EXPECT_EQ(whole("/v1/chat/completions", chat(R"("separate_reasoning":false)")),
            (Heard{"", "<think>a</think>b", {}, {}, "stop"}));
  const std::string hidden = chat(R"("include_reasoning":false,"stream":true)");
  EXPECT_EQ(sse_data(post("/v1/chat/completions", hidden).body).size(), 4U)
      << "role, b, the end, [DONE]";
}

TEST_F(ThinkingTest, AStopStringDoesNotMoveTheBorderOfThoughts) {
  syntax_ = {ReasoningSyntax::kDeepSeekR1, ToolSyntax::kNone};
  start();
  play("thought</think>answer");
  for (const std::string extra : {R"("n":1)", R"("stop":["<|"])", R"("stop":["</x"])"}) {
    EXPECT_EQ(whole("/v1/chat/completions", chat(extra)),
              (Heard{"thought", "answer", {}, {}, "stop"}));
    EXPECT_EQ(streamed("/v1/chat/completions", chat(extra)),
              (Heard{"thought", "answer", {}, {}, "stop"}));
  }
}

TEST_F(ThinkingTest, LooksForCallsOnlyWhereToolsMayBeCalled) {
  syntax_ = {ReasoningSyntax::kNone, ToolSyntax::kHermes};
  start();
  play(std::string(kTwoCalls));
  const Heard text = {"", std::string(kTwoCalls), {}, {}, "stop"};
  EXPECT_EQ(whole("/v1/chat/completions", chat(R"("n":1)")), text);
  EXPECT_EQ(whole("/v1/chat/completions", chat(R"("tool_choice":"none",)" + std::string(kTools))),
            text);
  EXPECT_EQ(generator_.last_prompt().find("|tools:"), std::string::npos);
  const Heard one =
      whole("/v1/chat/completions", chat(R"("parallel_tool_calls":false,)" + std::string(kTools)));
  EXPECT_EQ(one.calls, std::vector<std::string>{"get_weather({\"city\": \"上海\"}"});
  EXPECT_EQ(one.reason, "tool_calls");
}

TEST_F(ThinkingTest, EveryTokenHasItsLogprobEvenInsideOfACall) {
  syntax_ = {ReasoningSyntax::kNone, ToolSyntax::kHermes};
  start();
  play(std::string(kTwoCalls));
  std::string body = chat(R"("logprobs":true,"stream":true,)" + std::string(kTools));
  std::size_t count = 0;
  for (const std::string& event : sse_data(post("/v1/chat/completions", body).body)) {
    if (event == "[DONE]") break;
    const json::value chunk = json::parse(event);
    const json::value& logprobs = chunk.at("choices").at(0).at("logprobs");
    if (logprobs.is_object()) count += logprobs.at("content").as_array().size();
  }
  EXPECT_EQ(count, kTwoCalls.size() + 1);  // one byte a token, and the end
}

TEST_F(ThinkingTest, RefusesToolsThatAreNone) {
  syntax_ = {ReasoningSyntax::kNone, ToolSyntax::kHermes};
  start();
  for (const std::string extra :
       {R"("tools":[{"type":"function"}])", R"("tools":["f"])", R"("tools":{})",
        R"("tools":[{"type":"function","function":{}}])",
        R"("tools":[{"type":"function","function":{"name":""}}])",
        R"("tools":[{"type":"function","function":{"name":"a b"}}])",
        R"("tools":[{"type":"retrieval","function":{"name":"f"}}])",
        R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])",
        R"("tools":[{"type":"function","function":{"name":"f","strict":1}}])",
        R"("tool_choice":"required")", R"("tool_choice":"any")", R"("tool_choice":{"type":"x"})",
        R"("tool_choice":{"type":"function","function":{"name":"f"}})",
        R"("parallel_tool_calls":"no")"}) {
    const ClientResponse response = post("/v1/chat/completions", chat(extra));
    EXPECT_EQ(response.status, 400) << extra << response.body;
  }
}

TEST_F(ThinkingTest, ForcedCallsAreHeldToAGrammar) {
  syntax_ = {ReasoningSyntax::kDeepSeekR1, ToolSyntax::kHermes};
  start();
  play("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>");
  for (const std::string choice :
       {R"("required")", R"({"type":"function","function":{"name":"f"}})"}) {
    const Heard heard = whole("/v1/chat/completions",
                              chat("\"tool_choice\":" + choice + "," + std::string(kTools)));
    EXPECT_EQ(heard.calls, std::vector<std::string>{"f({}"});
    EXPECT_EQ(heard.reasoning, "") << "the grammar holds from the first token on";
    EXPECT_NE(generator_.last().constraint, nullptr);
  }
  EXPECT_EQ(post("/v1/chat/completions",
                 chat(R"("tool_choice":"required","response_format":{"type":"json_object"},)" +
                      std::string(kTools)))
                .status,
            400);
  EXPECT_EQ(whole("/v1/chat/completions", chat(kTools)).calls.size(), 0U) << "all of it is thought";
  EXPECT_EQ(generator_.last().constraint, nullptr);
}

TEST_F(ThinkingTest, ContinuesTheLastMessage) {
  start();
  play(" world");
  for (const std::string body :
       {R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"Hello",
            "prefix":true}]})",
        R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"Hello"}],
            "continue_final_message":true,"add_generation_prompt":false})"}) {
    EXPECT_EQ(whole("/v1/chat/completions", body), (Heard{"", " world", {}, {}, "stop"}));
    EXPECT_TRUE(generator_.last_prompt().ends_with("Hello")) << generator_.last_prompt();
    EXPECT_EQ(generator_.last_prompt().find("prefix"), std::string::npos);
  }
  for (const std::string body :
       {R"({"messages":[{"role":"assistant","content":"a","prefix":true},
            {"role":"user","content":"x"}]})",
        R"({"messages":[{"role":"user","content":"x","prefix":true}]})",
        R"({"messages":[{"role":"user","content":"x"}],"continue_final_message":true})",
        R"({"messages":[{"role":"assistant","content":"x"}],"continue_final_message":true,
            "add_generation_prompt":true})",
        R"({"messages":[{"role":"assistant","content":"x","prefix":"yes"}]})"}) {
    EXPECT_EQ(post("/v1/chat/completions", body).status, 400) << body;
  }
}

TEST_F(ThinkingTest, EchoRepeatsTheMessageThatIsContinued) {
  start();
  play(" world");
  const std::string head = R"({"messages":[{"role":"user","content":"x"},)";
  const std::string ask = R"("echo":true,"continue_final_message":true})";
  EXPECT_EQ(
      whole("/v1/chat/completions", head + R"({"role":"assistant","content":"Hello"}],)" + ask),
      (Heard{"", "Hello world", {}, {}, "stop"}));
  EXPECT_EQ(
      whole("/v1/chat/completions",
            head + R"({"role":"assistant","content":["a",{"type":"text","text":"b"}]}],)" + ask),
      (Heard{"", "a\nb world", {}, {}, "stop"}));
  // Nothing of the user's.
  EXPECT_EQ(whole("/v1/chat/completions", chat(R"("echo":true)")),
            (Heard{"", " world", {}, {}, "stop"}));
}

TEST_F(ThinkingTest, APrefixInsideOfAThoughtIsThoughtOn) {
  syntax_ = {ReasoningSyntax::kDeepSeekR1, ToolSyntax::kNone};
  start();
  play(" more</think>done");
  EXPECT_EQ(whole("/v1/chat/completions",
                  R"({"messages":[{"role":"assistant","content":"<think>a","prefix":true}]})"),
            (Heard{" more", "done", {}, {}, "stop"}));
  play("b</think>");
  EXPECT_EQ(whole("/v1/chat/completions",
                  R"({"messages":[{"role":"assistant","content":"a","prefix":true}]})"),
            (Heard{"", "b</think>", {}, {}, "stop"}));
}

constexpr std::string_view kToolLoop =
    R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"",
        %s"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c","content":"7"}]})";

std::string tool_loop(std::string_view member) {
  std::string body(kToolLoop);
  return body.replace(body.find("%s"), 2, member);
}

TEST_F(ThinkingTest, DeepSeekWantsThoughtsBackWithCalls) {
  syntax_ = {ReasoningSyntax::kDeepSeekV3, ToolSyntax::kDeepSeekV31};
  start();
  const ClientResponse missing = post("/chat/completions", tool_loop(""));
  EXPECT_EQ(missing.status, 400);
  EXPECT_EQ(missing.json().at("error").at("type"), "invalid_request_error");
  EXPECT_EQ(missing.json().at("error").at("message"),
            "The `reasoning_content` in the thinking mode must be passed back to the API.");
  EXPECT_EQ(post("/chat/completions", tool_loop(R"("reasoning_content":"",)")).status, 200);
  EXPECT_EQ(post("/v1/chat/completions", tool_loop("")).status, 200);
  std::string off = tool_loop("");
  off.pop_back();
  EXPECT_EQ(post("/chat/completions", off + R"(,"thinking":{"type":"disabled"}})").status, 200);
}

TEST_F(ThinkingTest, TemplatesFindThoughtsUnderEitherName) {
  start();
  for (const std::string name : {"reasoning", "reasoning_content"}) {
    ASSERT_EQ(post("/v1/chat/completions", R"({"messages":[{"role":"assistant","content":"a",")" +
                                               name + R"(":"t"},{"role":"user","content":"b"}]})")
                  .status,
              200);
    const std::string prompt = generator_.last_prompt();
    EXPECT_NE(prompt.find(R"("reasoning":"t")"), std::string::npos) << prompt;
    EXPECT_NE(prompt.find(R"("reasoning_content":"t")"), std::string::npos) << prompt;
  }
}

TEST_F(ThinkingTest, DeepSeekThinksUnlessToldNotTo) {
  start();
  ASSERT_EQ(post("/chat/completions", chat(R"("n":1)")).status, 200);
  EXPECT_NE(generator_.last_prompt().find(R"("thinking":true)"), std::string::npos);
  ASSERT_EQ(post("/v1/chat/completions", chat(R"("n":1)")).status, 200);
  EXPECT_EQ(generator_.last_prompt().find("thinking"), std::string::npos);
  ASSERT_EQ(post("/v1/chat/completions", chat(R"("reasoning_effort":"none")")).status, 200);
  EXPECT_NE(generator_.last_prompt().find(R"("thinking":false)"), std::string::npos);
}

TEST_F(ThinkingTest, TemplatesCannotBeToldWhoTheyAre) {
  start();
  for (const std::string name : {"messages", "tools", "tokenize", "bos_token", "chat_template"}) {
    EXPECT_EQ(
        post("/v1/chat/completions", chat(R"("chat_template_kwargs":{")" + name + R"(":true})"))
            .status,
        400)
        << name;
  }
}

TEST_F(ThinkingTest, DeepSeekTellsFieldsOutOfRangeFromRequestsItCannotRead) {
  start();
  const auto status = [&](std::string_view path, const std::string& body) {
    return post(path, body).status;
  };
  EXPECT_EQ(status("/chat/completions", chat(R"("temperature":9)")), 422);
  EXPECT_EQ(status("/v1/chat/completions", chat(R"("temperature":9)")), 400);
  EXPECT_EQ(status("/chat/completions", "{"), 400);
  EXPECT_EQ(status("/completions", R"({"prompt":"a","max_tokens":99999})"), 400);
  const json::value error = post("/chat/completions", "{").json().at("error");
  EXPECT_EQ(error.at("type"), "invalid_request_error");
  EXPECT_EQ(error.at("code"), "invalid_request_error");
}

TEST_F(ThinkingTest, ASilentAnswerInOnePieceIsKeptAliveWithBlankLinesByDeepSeek) {
  options_.limits.keepalive_interval = std::chrono::milliseconds(20);
  Script script;
  script.step = std::chrono::milliseconds(60);
  generator_.play(script);
  start();
  const ClientResponse deepseek = post("/chat/completions", chat(R"("n":1)"));
  EXPECT_EQ(deepseek.status, 200);
  EXPECT_EQ(deepseek.json().at("choices").at(0).at("message").at("content"), "Hello");
  const ClientResponse openai = post("/v1/chat/completions", chat(R"("n":1)"));
  EXPECT_FALSE(openai.body.starts_with("\n"));
}

TEST_F(ThinkingTest, FillingInNeedsTokensForIt) {
  start();
  const ClientResponse response =
      post("/beta/completions", R"({"prompt":"def f(","suffix":"return a"})");
  EXPECT_EQ(response.status, 422) << response.body;
  EXPECT_EQ(response.json().at("error").at("param"), "suffix");
}

TEST_F(ThinkingTest, AnAnswerThatRepeatsItselfEnds) {
  start();
  play("abc xyxyxyxyxyxyxyxyxyxy and on");
  const auto ask = [&](std::string_view limits) {
    return post("/v1/completions", R"({"prompt":"a","max_tokens":99,"repetition_detection":)" +
                                       std::string(limits) + "}");
  };
  const json::value cut = ask(R"({"max_pattern_size":4,"min_count":3})").json();
  EXPECT_EQ(cut.at("choices").at(0).at("text"), "abc xyxyxy");
  EXPECT_EQ(cut.at("choices").at(0).at("finish_reason"), "repetition");
  const json::value free = ask(R"({"max_pattern_size":4,"min_count":50})").json();
  EXPECT_EQ(free.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_EQ(ask(R"({"max_pattern_size":2,"min_pattern_size":3})").status, 400);
  EXPECT_EQ(ask(R"({"max_pattern_size":4,"min_count":1})").status, 400);
}

TEST_F(ThinkingTest, LogprobsCanShowIds) {
  start();
  const json::value answer = post("/v1/completions",
                                  R"({"prompt":"a","logprobs":0,"max_tokens":1,
                                      "return_tokens_as_token_ids":true})")
                                 .json();
  EXPECT_EQ(answer.at("choices").at(0).at("logprobs").at("tokens").at(0), "token_id:72");
}

TEST_F(ThinkingTest, TheBestOfSeveralSamplesIsShown) {
  start();
  const json::value answer = post("/v1/completions", R"({"prompt":"a","n":2,"best_of":5})").json();
  EXPECT_EQ(answer.at("choices").as_array().size(), 2U);
  EXPECT_EQ(generator_.last().choice_count, 5);
  EXPECT_EQ(answer.at("choices").at(1).at("index"), 1);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","n":3,"best_of":2})").status, 400);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","best_of":2,"stream":true})").status, 400);
}

TEST_F(ThinkingTest, AnEchoedPromptHasLogprobs) {
  start();
  for (const std::string stream : {"false", "true"}) {
    const ClientResponse response =
        post("/v1/completions",
             R"({"prompt":"abc","echo":true,"logprobs":1,"max_tokens":1,"stream":)" + stream + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    const json::value answer =
        stream == "true" ? json::parse(sse_data(response.body).front()) : response.json();
    const json::value& choice = answer.at("choices").at(0);
    const json::value& logprobs = choice.at("logprobs");
    EXPECT_EQ(choice.at("text"), "abcH");
    for (const char* column : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
      EXPECT_EQ(logprobs.at(column).as_array().size(), 4U) << column;
    }
    EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
    EXPECT_TRUE(logprobs.at("top_logprobs").at(0).is_null());
    EXPECT_EQ(logprobs.at("token_logprobs").at(1).to_number<double>(), -2.0);
    EXPECT_EQ(logprobs.at("tokens").at(3), "H");
    EXPECT_EQ(logprobs.at("text_offset").at(3), 3);
  }
}

TEST_F(ThinkingTest, LogprobsOfThePromptInVllmsShape) {
  start();
  const json::value text =
      post("/v1/completions", R"({"prompt":"abc","prompt_logprobs":2,"max_tokens":1})").json();
  const json::array& scores = text.at("choices").at(0).at("prompt_logprobs").as_array();
  ASSERT_EQ(scores.size(), 3U);
  EXPECT_TRUE(scores[0].is_null());
  EXPECT_EQ(scores[1].at("98").at("logprob").to_number<double>(), -2.0);
  EXPECT_EQ(scores[1].at("98").at("decoded_token"), "b");
  EXPECT_EQ(scores[1].as_object().size(), 3U);
  EXPECT_TRUE(text.at("choices").at(0).at("logprobs").is_null());
  const json::value chat_answer =
      post("/v1/chat/completions", chat(R"("prompt_logprobs":0)")).json();
  EXPECT_EQ(chat_answer.at("prompt_logprobs").as_array().size(), generator_.last().prompt.size());
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","prompt_logprobs":1,"stream":true})").status,
            400);
}

TEST_F(ThinkingTest, APromptCanBeReadWithoutAnAnswer) {
  start();
  for (const std::string stream : {"false", "true"}) {
    const ClientResponse response =
        post("/v1/completions",
             R"({"prompt":"Hello","echo":true,"max_tokens":0,"stream":)" + stream + "}");
    ASSERT_EQ(response.status, 200) << response.body;
    if (stream == "true") continue;
    const json::value answer = response.json();
    EXPECT_EQ(answer.at("choices").at(0).at("text"), "Hello");
    EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "length");
    EXPECT_EQ(answer.at("usage").at("completion_tokens"), 0);
    EXPECT_EQ(generator_.last().output_count_max, 1);
  }
}

}  // namespace
}  // namespace kun
