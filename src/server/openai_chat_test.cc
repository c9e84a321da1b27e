// Chat over real sockets, with a generator that plays scripts.
#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

using ChatTest = ServerFixture;

constexpr std::string_view kHello =
    R"({"model":"tiny","messages":[{"role":"user","content":"hi"}]})";

std::string chat(std::string_view extra) {
  return R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],)" + std::string(extra) +
         "}";
}

TEST_F(ChatTest, AnswersInOpenAisShape) {
  Script script;
  script.text = "Hello";
  script.cached_count = 3;
  generator_.play(script);
  start();
  const ClientResponse response = post("/v1/chat/completions", kHello);
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.header("content-type"), "application/json");
  const json::value answer = response.json();
  EXPECT_TRUE(answer.at("id").as_string().starts_with("chatcmpl-"));
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_EQ(answer.at("model"), "tiny");
  EXPECT_GT(answer.at("created").as_int64(), 1'600'000'000);
  EXPECT_TRUE(answer.at("system_fingerprint").is_string());
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("index"), 0);
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("message").at("content"), "Hello");
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_TRUE(choice.at("stop_reason").is_null());
  EXPECT_TRUE(choice.at("logprobs").is_null());
  const json::value& usage = answer.at("usage");
  const auto prompt = static_cast<std::int64_t>(generator_.last().prompt.size());
  EXPECT_EQ(usage.at("prompt_tokens"), prompt);
  EXPECT_EQ(usage.at("completion_tokens"), 6);  // the end token is one
  EXPECT_EQ(usage.at("total_tokens"), prompt + 6);
  EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), 3);
  EXPECT_EQ(usage.at("prompt_cache_hit_tokens"), 3);
  EXPECT_EQ(usage.at("prompt_cache_miss_tokens"), prompt - 3);
}

TEST_F(ChatTest, StreamsRoleThenTextThenReasonThenUsageThenDone) {
  start();
  const ClientResponse response = post(
      "/v1/chat/completions", chat(R"("stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(response.status, 200);
  EXPECT_TRUE(response.header("content-type").starts_with("text/event-stream"));
  ASSERT_TRUE(response.complete);
  const std::vector<std::string> events = sse_data(response.body);
  ASSERT_GE(events.size(), 5U);
  EXPECT_EQ(events.back(), "[DONE]");
  const json::value first = json::parse(events.front());
  EXPECT_EQ(first.at("object"), "chat.completion.chunk");
  EXPECT_EQ(first.at("choices").at(0).at("delta").at("role"), "assistant");
  EXPECT_EQ(first.at("choices").at(0).at("delta").at("content"), "");
  EXPECT_TRUE(first.at("choices").at(0).at("finish_reason").is_null());
  EXPECT_TRUE(first.at("usage").is_null());
  std::string text;
  for (std::size_t i = 1; i + 3 < events.size(); ++i) {
    const json::value chunk = json::parse(events[i]);
    EXPECT_EQ(chunk.at("id"), first.at("id"));
    EXPECT_FALSE(chunk.at("choices").at(0).at("delta").as_object().contains("role"));
    text += chunk.at("choices").at(0).at("delta").at("content").as_string();
  }
  EXPECT_EQ(text, "Hello");
  const json::value last = json::parse(events[events.size() - 3]);
  EXPECT_EQ(last.at("choices").at(0).at("finish_reason"), "stop");
  EXPECT_TRUE(last.at("choices").at(0).at("delta").as_object().empty());
  const json::value usage = json::parse(events[events.size() - 2]);
  EXPECT_TRUE(usage.at("choices").as_array().empty());
  EXPECT_EQ(usage.at("usage").at("completion_tokens"), 6);
}

TEST_F(ChatTest, SendsUsageWithEveryChunkWhenAskedTo) {
  start();
  const ClientResponse response =
      post("/v1/chat/completions",
           chat(R"("stream":true,"stream_options":{"continuous_usage_stats":true})"));
  std::int64_t before = 0;
  for (const std::string& event : sse_data(response.body)) {
    if (event == "[DONE]") break;
    const std::int64_t now = json::parse(event).at("usage").at("completion_tokens").as_int64();
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_EQ(before, 6);
}

TEST_F(ChatTest, NumbersTheChoicesOfAStream) {
  start();
  const ClientResponse response = post("/v1/chat/completions", chat(R"("stream":true,"n":3)"));
  std::vector<std::string> texts(3);
  std::vector<int> ends(3, 0);
  for (const std::string& event : sse_data(response.body)) {
    if (event == "[DONE]") break;
    const json::value chunk = json::parse(event);
    const json::value& choice = chunk.at("choices").at(0);
    const auto index = static_cast<std::size_t>(choice.at("index").as_int64());
    if (const auto* content = choice.at("delta").as_object().if_contains("content")) {
      texts[index] += content->as_string();
    }
    if (choice.at("finish_reason").is_string()) ++ends[index];
  }
  EXPECT_EQ(texts, std::vector<std::string>(3, "Hello"));
  EXPECT_EQ(ends, std::vector<int>(3, 1));
}

TEST_F(ChatTest, NeverSendsHalfACharacter) {
  Script script;
  script.text = "a\xE4\xBD\xA0\xE5\xA5\xBD\xF0\x9F\x98\x80z";  // one byte a token
  generator_.play(script);
  start();
  const ClientResponse response = post("/v1/chat/completions", chat(R"("stream":true)"));
  std::string text;
  for (const std::string& event : sse_data(response.body)) {
    if (event == "[DONE]") break;
    const json::value chunk = json::parse(event);
    const auto& delta = chunk.at("choices").at(0).at("delta").as_object();
    if (const auto* content = delta.if_contains("content")) text += content->as_string();
    EXPECT_EQ(event.find("\xEF\xBF\xBD"), std::string::npos);
  }
  EXPECT_EQ(text, script.text);
}

TEST_F(ChatTest, StopsAtAStringThatCrossesTokensAndTellsTheEngineWhatToKeep) {
  Script script;
  script.text = "one two STOP three four five six seven eight nine ten eleven";
  script.step = std::chrono::milliseconds(3);
  generator_.play(script);
  start();
  for (const char* stream : {"false", "true"}) {
    const ClientResponse response =
        post("/v1/chat/completions",
             chat(std::string(R"("n":2,"stop":["xyz","STOP"],"stream":)") + stream));
    if (std::string_view(stream) == "false") {
      const json::value answer = response.json();
      const json::value& choice = answer.at("choices").at(1);
      EXPECT_EQ(choice.at("message").at("content"), "one two ");
      EXPECT_EQ(choice.at("finish_reason"), "stop");
      EXPECT_EQ(choice.at("stop_reason"), "STOP");
      EXPECT_EQ(answer.at("usage").at("completion_tokens"), 24);  // 12 bytes, twice
    } else {
      EXPECT_EQ(response.body.find('S' + std::string("\"}")), std::string::npos);
      EXPECT_NE(response.body.find(R"("stop_reason":"STOP")"), std::string::npos);
    }
  }
  EXPECT_TRUE(eventually([&] { return generator_.running_count() == 0; }));
}

TEST_F(ChatTest, KeepsTheStopStringWhenAskedTo) {
  generator_.play("one STOP two");
  start();
  const ClientResponse response =
      post("/v1/chat/completions", chat(R"("stop":"STOP","include_stop_str_in_output":true)"));
  EXPECT_EQ(response.json().at("choices").at(0).at("message").at("content"), "one STOP");
}

TEST_F(ChatTest, DoesNotStopBeforeMinTokens) {
  generator_.play("a.b.c.d");
  start();
  const ClientResponse response =
      post("/v1/chat/completions", chat(R"("stop":".","min_tokens":4)"));
  EXPECT_EQ(response.json().at("choices").at(0).at("message").at("content"), "a.b.c");
}

TEST_F(ChatTest, NamesTheStopTokenOfTheRequest) {
  generator_.play("ab!cd");
  start();
  const json::value answer = post("/v1/chat/completions", chat(R"("stop_token_ids":[33])")).json();
  EXPECT_EQ(answer.at("choices").at(0).at("message").at("content"), "ab");
  EXPECT_EQ(answer.at("choices").at(0).at("stop_reason"), 33);
}

TEST_F(ChatTest, SaysLengthWhenTheLimitWasReached) {
  generator_.play("Hello world");
  start();
  for (const char* name : {"max_tokens", "max_completion_tokens"}) {
    const json::value answer =
        post("/v1/chat/completions", chat('"' + std::string(name) + R"(":4)")).json();
    EXPECT_EQ(answer.at("choices").at(0).at("message").at("content"), "Hell");
    EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "length");
  }
}

TEST_F(ChatTest, ShowsLogprobsWithBytes) {
  generator_.play("\xC3\xA9");
  start();
  const json::value answer =
      post("/v1/chat/completions", chat(R"("logprobs":true,"top_logprobs":2,"max_tokens":2)"))
          .json();
  const json::value& content = answer.at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(content.as_array().size(), 2U);
  EXPECT_EQ(content.at(0).at("bytes").at(0), 0xC3);
  EXPECT_EQ(content.at(0).at("token"), "\xEF\xBF\xBD");  // half a character, as text
  EXPECT_EQ(content.at(0).at("logprob"), -0.5);
  ASSERT_EQ(content.at(0).at("top_logprobs").as_array().size(), 2U);
  EXPECT_EQ(content.at(0).at("top_logprobs").at(1).at("logprob"), -1.5);
  EXPECT_EQ(answer.at("choices").at(0).at("message").at("content"), "\xC3\xA9");
}

TEST_F(ChatTest, ReturnsTokenIdsWhenAskedTo) {
  generator_.play("AB");
  start();
  const json::value answer =
      post("/v1/chat/completions", chat(R"("return_token_ids":true)")).json();
  EXPECT_EQ(answer.at("choices").at(0).at("token_ids"), (json::array{65, 66, 256}));
  EXPECT_EQ(answer.at("prompt_token_ids").as_array().size(), generator_.last().prompt.size());
}

TEST_F(ChatTest, GivesTheTemplateMessagesToolsAndVariables) {
  start();
  post("/v1/chat/completions", R"({"messages":[
    {"role":"developer","content":"be brief"},
    {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f"}}]},
    {"role":"tool","content":"42","tool_call_id":"1"}],
    "tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto",
    "thinking":{"type":"disabled"},"chat_template_kwargs":{"x":1},"add_generation_prompt":false})");
  EXPECT_EQ(
      generator_.last_prompt(),
      R"([{"role":"system","content":"be brief"},{"role":"user","content":"a\nb"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"f"}}]},)"
      R"({"role":"tool","content":"42","tool_call_id":"1"}])"
      R"(|tools:[{"type":"function","function":{"name":"f"}}])"
      R"(|extra:{"thinking":false,"enable_thinking":false,"x":1}|no prompt)");
  post("/v1/chat/completions",
       chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")"));
  EXPECT_EQ(generator_.last_prompt(), R"([{"role":"user","content":"hi"}])");
}

TEST_F(ChatTest, HandsSamplingOverToTheEngine) {
  start();
  post("/v1/chat/completions",
       chat(R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"repetition_penalty":1.1,
               "frequency_penalty":0.2,"presence_penalty":-0.2,"seed":-1,"min_tokens":2,
               "logit_bias":{"65":-100,"66":2.5},"n":2,"priority":-3,"cache_salt":"s",
               "max_tokens":7,"logprobs":true,"top_logprobs":5)"));
  const GenerateRequest request = generator_.last();
  EXPECT_FLOAT_EQ(request.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request.sampling.top_p, 0.9F);
  EXPECT_EQ(request.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(request.sampling.min_p, 0.1F);
  EXPECT_FLOAT_EQ(request.sampling.repetition_penalty, 1.1F);
  EXPECT_FLOAT_EQ(request.sampling.frequency_penalty, 0.2F);
  EXPECT_FLOAT_EQ(request.sampling.presence_penalty, -0.2F);
  EXPECT_EQ(request.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(request.sampling.output_count_min, 2);
  EXPECT_EQ(request.sampling.logprob_count, 5);
  ASSERT_EQ(request.sampling.logit_bias.size(), 2U);
  EXPECT_EQ(request.sampling.logit_bias[1], (std::pair<Token, float>(66, 2.5F)));
  EXPECT_EQ(request.choice_count, 2);
  EXPECT_EQ(request.priority, -3);
  EXPECT_EQ(request.cache_salt, "s");
  EXPECT_EQ(request.output_count_max, 7);
  EXPECT_EQ(request.end_tokens, std::vector<Token>{kByteTokenizerEnd});
  EXPECT_EQ(request.sampling.end_tokens, request.end_tokens);
}

TEST_F(ChatTest, FillsTheRestOfTheContextByDefault) {
  context_length_ = 64;
  start();
  post("/v1/chat/completions", kHello);
  const GenerateRequest request = generator_.last();
  EXPECT_EQ(request.output_count_max, 64 - static_cast<int>(request.prompt.size()));
  post("/v1/chat/completions", chat(R"("ignore_eos":true)"));
  EXPECT_TRUE(generator_.last().ignore_end_tokens);
  EXPECT_TRUE(generator_.last().end_tokens.empty());
}

TEST_F(ChatTest, RefusesWhatExceedsTheContext) {
  context_length_ = 64;
  start();
  const ClientResponse long_prompt =
      post("/v1/chat/completions",
           R"({"messages":[{"role":"user","content":")" + std::string(100, 'x') + R"("}]})");
  EXPECT_EQ(long_prompt.status, 400);
  EXPECT_NE(long_prompt.body.find("maximum context length is 64 tokens"), std::string::npos);
  const ClientResponse long_answer = post("/v1/chat/completions", chat(R"("max_tokens":60)"));
  EXPECT_EQ(long_answer.status, 400);
  EXPECT_EQ(long_answer.json().at("error").at("param"), "max_tokens");
  const ClientResponse cut = post(
      "/v1/chat/completions", R"({"truncate_prompt_tokens":10,"max_tokens":4,"messages":[{"role":)"
                              R"("user","content":")" +
                                  std::string(100, 'x') + R"("}]})");
  EXPECT_EQ(cut.status, 200);
  EXPECT_EQ(generator_.last_prompt(), R"(xxxxxxx"}])");
}

TEST_F(ChatTest, RefusalsOfTheEngineBecomeStatuses) {
  start();
  Script script;
  for (const auto& [status, code] :
       {std::pair{resource_exhausted("full"), 429}, std::pair{unavailable("draining"), 503},
        std::pair{invalid_argument("never fits"), 400}, std::pair{internal_error("oops"), 500}}) {
    script.refusal = status;
    generator_.play(script);
    for (const char* stream : {"false", "true"}) {
      const ClientResponse response =
          post("/v1/chat/completions", chat(std::string(R"("stream":)") + stream));
      EXPECT_EQ(response.status, code);
      EXPECT_EQ(response.json().at("error").at("message"), status.message().c_str());
      EXPECT_EQ(response.header("retry-after").empty(), code != 429 && code != 503);
    }
  }
}

TEST_F(ChatTest, AnErrorInMidStreamIsAnEventBeforeDone) {
  Script script;
  script.fail_after = 2;
  script.step = std::chrono::milliseconds(100);  // so that the first token is out before the error
  generator_.play(script);
  start();
  const ClientResponse response = post("/v1/chat/completions", chat(R"("stream":true)"));
  EXPECT_EQ(response.status, 200);
  const std::vector<std::string> events = sse_data(response.body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events[events.size() - 2]).at("error").at("code"), 500);
}

TEST_F(ChatTest, SaysWhichFieldIsWrong) {
  start();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":2.5)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_p":1.01)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("min_p":1.5)", "min_p"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("frequency_penalty":2.1)", "frequency_penalty"},
      {R"("presence_penalty":-2.1)", "presence_penalty"},
      {R"("n":0)", "n"},
      {R"("n":129)", "n"},
      {R"("n":1.5)", "n"},
      {R"("n":true)", "n"},
      {R"("seed":9223372036854775808)", "seed"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_completion_tokens":99999999999)", "max_completion_tokens"},
      {R"("stop":"")", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("logprobs":1)", "logprobs"},
      {R"("top_logprobs":3)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("logit_bias":{"257":1})", "logit_bias"},
      {R"("logit_bias":{"x":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stream":"yes")", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("priority":3000000000)", "priority"},
      {R"("request_id":"a b")", "request_id"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
      {R"("min_tokens":10,"max_tokens":5)", "min_tokens"},
      {R"("use_beam_search":true,"stream":true)", "use_beam_search"},
      {R"("use_beam_search":true,"response_format":{"type":"json_object"})", "use_beam_search"},
      {R"("use_beam_search":true,"temperature":0.7)", "temperature"},
      {R"("use_beam_search":true,"presence_penalty":1)", "presence_penalty"},
      {R"("use_beam_search":true,"logit_bias":{"1":1})", "logit_bias"},
      {R"("use_beam_search":true,"early_stopping":"soon")", "early_stopping"},
      {R"("use_beam_search":true,"n":4,"best_of":3)", "best_of"},
      {R"("thinking_token_budget":5)", "thinking_token_budget"},
      {R"("thinking":{"type":"enabled","budget_tokens":-1})", "thinking"},
      {R"("detokenize":false)", "detokenize"},
      {R"("verbosity":"loud")", "verbosity"},
      {R"("audio":{"voice":"x"})", "audio"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function"})", "tool_choice"},
      {R"("tools":[1])", "tools"},
      {R"("chat_template":"x")", "chat_template"},
      {R"("continue_final_message":true)", "messages"},
      {R"("reasoning_effort":"extreme")", "reasoning_effort"},
      {R"("thinking":{"type":"maybe"})", "thinking"},
  };
  for (const auto& [fields, param] : cases) {
    const ClientResponse response = post("/v1/chat/completions", chat(fields));
    EXPECT_EQ(response.status, 400) << fields;
    const json::value answer = response.json();
    const json::value& error = answer.at("error");
    EXPECT_EQ(error.at("param"), param.c_str()) << response.body;
    EXPECT_EQ(error.at("code"), 400);
    EXPECT_EQ(error.at("type"), "BadRequestError");
  }
}

TEST_F(ChatTest, SaysWhatIsWrongWithMessages) {
  start();
  for (const char* messages :
       {"", R"("messages":[])", R"("messages":"hi")", R"("messages":[1])",
        R"("messages":[{"content":"x"}])", R"("messages":[{"role":"king","content":"x"}])",
        R"("messages":[{"role":"user"}])", R"("messages":[{"role":"user","content":1}])",
        R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])",
        R"("messages":[{"role":"user","content":[{"type":"text"}]}])",
        R"("messages":[{"role":"user","content":"raise"}])"}) {
    const ClientResponse response = post("/v1/chat/completions", '{' + std::string(messages) + '}');
    EXPECT_EQ(response.status, 400) << messages;
    EXPECT_EQ(response.json().at("error").at("param"), "messages") << response.body;
  }
}

TEST_F(ChatTest, HarmlessFieldsMakeNoDifference) {
  start();
  const ClientResponse response =
      post("/v1/chat/completions",
           chat(R"("user":"u","metadata":{},"use_beam_search":false,"prompt_logprobs":null,
              "guided_json":null,"response_format":{"type":"text"},"unknown_field":[1,2],
              "max_tokens":16.0,"parallel_tool_calls":true,"temperature":null)"));
  EXPECT_EQ(response.status, 200) << response.body;
}

TEST_F(ChatTest, AnUnknownModelIs404) {
  start();
  const ClientResponse response =
      post("/v1/chat/completions", R"({"model":"x","messages":[{"role":"user","content":"a"}]})");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(response.json().at("error").at("param"), "model");
  EXPECT_EQ(response.json().at("error").at("message"), "The model `x` does not exist.");
}

TEST_F(ChatTest, UsesTheRequestIdOfTheClient) {
  start();
  const ClientResponse response = post("/v1/chat/completions", kHello, "X-Request-Id: abc-123\r\n");
  EXPECT_EQ(response.header("x-request-id"), "abc-123");
  EXPECT_EQ(response.json().at("id"), "chatcmpl-abc-123");
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("request_id":"mine")")).json().at("id"),
            "chatcmpl-mine");
}

TEST_F(ChatTest, HostileJsonIsRefused) {
  start();
  const std::string deep = std::string(100'000, '[');
  std::string stops = "[";
  for (int i = 0; i < 10'000; ++i) stops += R"("s",)";
  stops.back() = ']';
  const std::vector<std::string> bodies = {
      "",
      "{",
      "[]",
      "nonsense",
      deep,
      R"({"messages":)" + deep,
      chat(R"("temperature":1e400)"),
      chat(R"("x":1e400)"),
      chat(R"("temperature":NaN)"),
      chat(R"("stop":)" + stops),
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\xFF\xFE\"}]}",
      "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}",
      std::string(kHello) + "x",
  };
  for (const std::string& body : bodies) {
    const ClientResponse response = post("/v1/chat/completions", body);
    EXPECT_EQ(response.status, 400) << body.substr(0, 100);
    EXPECT_TRUE(response.json().at("error").at("message").is_string());
  }
  EXPECT_EQ(post("/v1/chat/completions", kHello).status, 200);
}

TEST_F(ChatTest, TheLastOfTwoEqualKeysCounts) {
  start();
  EXPECT_EQ(post("/v1/chat/completions", chat(R"("max_tokens":3,"max_tokens":2)")).status, 200);
  EXPECT_EQ(generator_.last().output_count_max, 2);
}

}  // namespace
}  // namespace kun
