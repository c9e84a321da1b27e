// /v1/messages and /v1/responses over real sockets: shapes, event order, and that a stream adds up
// to the whole answer.
#include "server/response_store.h"
#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

constexpr std::string_view kSaid =
    "<think>\nHm.\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
    "{\"city\": \"上海\"}}\n</tool_call>";

class DialectTest : public ServerFixture {
 protected:
  DialectTest() { syntax_ = {ReasoningSyntax::kQwen3, ToolSyntax::kHermes}; }

  struct Event {
    std::string name;
    json::value data;
  };

  std::vector<Event> stream(std::string_view path, const std::string& body) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    std::vector<Event> events;
    std::string name;
    std::size_t at = 0;
    while (at < response.body.size()) {
      const std::size_t end = response.body.find('\n', at);
      const std::string line = response.body.substr(at, end - at);
      if (line.starts_with("event: ")) name = line.substr(7);
      if (line.starts_with("data: ")) events.push_back({name, json::parse(line.substr(6))});
      if (end == std::string::npos) break;
      at = end + 1;
    }
    for (const Event& event : events) EXPECT_EQ(event.data.at("type").as_string(), event.name);
    return events;
  }

  static std::vector<std::string> names(const std::vector<Event>& events) {
    std::vector<std::string> all;
    for (const Event& event : events) {
      if (all.empty() || all.back() != event.name) all.push_back(event.name);
    }
    return all;
  }
};

constexpr std::string_view kMessagesTools =
    R"("tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}])";

std::string messages(std::string_view extra) {
  return R"({"model":"tiny","max_tokens":999,"messages":[{"role":"user","content":"hi"}],)" +
         std::string(extra) + "}";
}

TEST_F(DialectTest, MessagesAnswerInBlocks) {
  Script script;
  script.text = kSaid;
  script.cached_count = 4;
  generator_.play(script);
  start();
  const ClientResponse response = post("/v1/messages", messages(kMessagesTools));
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = response.json();
  EXPECT_TRUE(answer.at("id").as_string().starts_with("msg_"));
  EXPECT_EQ(answer.at("type"), "message");
  EXPECT_EQ(answer.at("role"), "assistant");
  EXPECT_EQ(answer.at("stop_reason"), "tool_use");
  const json::array& content = answer.at("content").as_array();
  ASSERT_EQ(content.size(), 3U);
  EXPECT_EQ(content[0].at("thinking"), "Hm.");
  EXPECT_EQ(content[1].at("text"), "I look.");
  EXPECT_EQ(content[2].at("name"), "f");
  EXPECT_EQ(content[2].at("input").at("city"), "上海");
  const auto prompt = static_cast<std::int64_t>(generator_.last().prompt.size());
  EXPECT_EQ(answer.at("usage").at("input_tokens"), prompt - 4);
  EXPECT_EQ(answer.at("usage").at("cache_read_input_tokens"), 4);
  EXPECT_NE(generator_.last_prompt().find("|tools:"), std::string::npos);
}

TEST_F(DialectTest, MessagesStreamTheSameBlocks) {
  generator_.play(std::string(kSaid));
  start();
  const std::vector<Event> events =
      stream("/v1/messages", messages(R"("stream":true,)" + std::string(kMessagesTools)));
  EXPECT_EQ(names(events), (std::vector<std::string>{
                               "message_start", "content_block_start", "content_block_delta",
                               "content_block_stop", "content_block_start", "content_block_delta",
                               "content_block_stop", "content_block_start", "content_block_delta",
                               "content_block_stop", "message_delta", "message_stop"}));
  std::vector<std::string> texts(3);
  for (const Event& event : events) {
    if (event.name != "content_block_delta") continue;
    const auto index = static_cast<std::size_t>(event.data.at("index").as_int64());
    for (const char* member : {"thinking", "text", "partial_json"}) {
      const json::value* text = event.data.at("delta").as_object().if_contains(member);
      if (text != nullptr) texts.at(index) += text->as_string();
    }
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"Hm.", "I look.", "{\"city\": \"上海\"}"}));
  EXPECT_EQ(events[events.size() - 2].data.at("delta").at("stop_reason"), "tool_use");
}

TEST_F(DialectTest, MessagesSayWhyTheyStop) {
  generator_.play("one two three");
  start();
  const auto reason = [&](std::string_view extra) {
    return post("/v1/messages", messages(extra)).json().at("stop_reason");
  };
  EXPECT_EQ(reason(R"("top_k":1)"), "end_turn");
  EXPECT_EQ(reason(R"("stop_sequences":["two"])"), "stop_sequence");
  const json::value cut =
      post("/v1/messages", R"({"max_tokens":2,"messages":[{"role":"user","content":"hi"}]})")
          .json();
  EXPECT_EQ(cut.at("stop_reason"), "max_tokens");
}

TEST_F(DialectTest, MessagesKeepWholeCallsBesideOneThatBrokeOff) {
  generator_.play(R"(<tool_call>
{"name": "f", "arguments": {"city": "Rome"}}
</tool_call>
<tool_call>
{"name": "f", "arguments": {"city": "Par)");
  start();
  const std::string body = messages(kMessagesTools);
  const json::value answer = post("/v1/messages", body).json();
  const json::array& content = answer.at("content").as_array();
  ASSERT_EQ(content.size(), 2U) << json::serialize(answer);
  EXPECT_EQ(content[0].at("input"), (json::object{{"city", "Rome"}}));
  EXPECT_EQ(content[1].at("input"), json::object()) << "what broke off is no JSON";
}

TEST_F(DialectTest, MessagesTakeASchemaAndAnEffort) {
  std::shared_ptr<const TokenConstraint> constraint;
  generator_.play([&](const GenerateRequest& request) {
    constraint = request.constraint;
    return Script{};
  });
  start();
  const std::string format =
      R"({"type":"json_schema","schema":{"type":"object","properties":{"a":{"enum":[1]}},)"
      R"("required":["a"],"additionalProperties":false}})";
  for (const std::string& extra : {R"("output_config":{"effort":"high","format":)" + format + "}",
                                   R"("output_format":)" + format}) {
    constraint = nullptr;
    const ClientResponse response = post("/v1/messages", messages(extra));
    ASSERT_EQ(response.status, 200) << response.body;
    ASSERT_NE(constraint, nullptr) << extra;
    const auto state = constraint->clone();
    for (const char c : std::string(R"({"a":)")) {
      EXPECT_TRUE(state->advance(static_cast<unsigned char>(c)).ok());
    }
    EXPECT_FALSE(state->clone()->advance('2').ok());
    EXPECT_TRUE(state->advance('1').ok());
    const bool effort =
        generator_.last_prompt().find(R"("reasoning_effort":"high")") != std::string::npos;
    EXPECT_EQ(effort, extra.starts_with(R"("output_config")"));
  }
  for (const std::string wrong :
       {R"("output_config":{"effort":"some"})", R"("output_config":{"format":{"type":"text"}})",
        R"("output_format":{"type":"json_schema"})", R"("output_config":"json")"}) {
    EXPECT_EQ(post("/v1/messages", messages(wrong)).status, 400) << wrong;
  }
}

TEST_F(DialectTest, MessagesBecomeAChat) {
  start();
  const std::string body =
      R"({"max_tokens":5,"system":[{"type":"text","text":"Be brief."}],"messages":[
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},
            {"type":"text","text":"c"},{"type":"tool_use","id":"u1","name":"f","input":{"x":1}}]},
          {"role":"user","content":[{"type":"tool_result","tool_use_id":"u1","content":"7"},
            {"type":"text","text":"d"}]}]})";
  ASSERT_EQ(post("/v1/messages", body).status, 200);
  const json::value chat = json::parse(generator_.last_prompt());
  const json::array& all = chat.as_array();
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].at("role"), "system");
  EXPECT_EQ(all[1].at("content"), "a\nb");
  EXPECT_EQ(all[2].at("reasoning_content"), "t");
  EXPECT_EQ(all[2].at("tool_calls").at(0).at("function").at("arguments"), R"({"x":1})");
  EXPECT_EQ(all[3].at("role"), "tool");
  EXPECT_EQ(all[3].at("tool_call_id"), "u1");
  EXPECT_EQ(all[4].at("content"), "d");
  const json::value count = post("/v1/messages/count_tokens", body).json();
  EXPECT_EQ(count.at("input_tokens"), static_cast<std::int64_t>(generator_.last().prompt.size()));
}

TEST_F(DialectTest, MessagesRefuseInAnthropicsShape) {
  options_.api_keys = {"secret"};
  start();
  const auto refused = [&](const std::string& body, int status, std::string_view type) {
    TestClient client(server_->port());
    const ClientResponse response =
        client.request("POST", "/v1/messages", body, "x-api-key: secret\r\n");
    EXPECT_EQ(response.status, status) << body << response.body;
    EXPECT_EQ(response.json().at("type"), "error");
    EXPECT_EQ(response.json().at("error").at("type").as_string(), type);
  };
  refused(R"({"messages":[{"role":"user","content":"hi"}]})", 400, "invalid_request_error");
  refused(R"({"max_tokens":5})", 400, "invalid_request_error");
  refused(R"({"max_tokens":5,"model":"x","messages":[{"role":"user","content":"hi"}]})", 404,
          "not_found_error");
  for (const std::string content : {R"([{"type":"image","source":{}}])", "[1]", "7",
                                    R"([{"type":"tool_use"}])", R"([{"type":"tool_result"}])"}) {
    refused(R"({"max_tokens":5,"messages":[{"role":"user","content":)" + content + "}]}", 400,
            "invalid_request_error");
  }
  refused(R"({"max_tokens":5,"messages":[{"role":"system","content":"x"}]})", 400,
          "invalid_request_error");
  EXPECT_EQ(post("/v1/messages", "{}").json().at("error").at("type"), "authentication_error");
}

TEST_F(DialectTest, ModelsAreShownToAnthropicsClientsInTheirShape) {
  start();
  TestClient client(server_->port());
  const std::string version = "anthropic-version: 2023-06-01\r\n";
  const json::value list = client.request("GET", "/v1/models", "", version).json();
  const json::value& model = list.at("data").at(0);
  EXPECT_EQ(model.at("type"), "model");
  EXPECT_EQ(model.at("display_name"), model.at("id"));
  const std::string created(model.at("created_at").as_string());
  EXPECT_EQ(created.size(), std::string("2026-01-02T03:04:05Z").size()) << created;
  EXPECT_EQ(list.at("has_more"), false);
  EXPECT_EQ(list.at("last_id"), list.at("data").as_array().back().at("id"));
  const std::string path = "/v1/models/" + std::string(model.at("id").as_string());
  EXPECT_EQ(client.request("GET", path, "", version).json(), model);
  EXPECT_EQ(client.request("GET", path).json().at("object"), "model") << "everybody else: OpenAI's";
}

TEST_F(DialectTest, ResponsesAnswerInItemsAndStreamTheSame) {
  generator_.play(std::string(kSaid));
  start();
  const std::string tools = R"("tools":[{"type":"function","name":"f","parameters":{}}])";
  const json::value answer = post("/v1/responses", R"({"input":"hi",)" + tools + "}").json();
  EXPECT_EQ(answer.at("object"), "response");
  EXPECT_EQ(answer.at("status"), "completed");
  const json::array& output = answer.at("output").as_array();
  ASSERT_EQ(output.size(), 3U) << json::serialize(answer);
  EXPECT_EQ(output[0].at("content").at(0).at("text"), "Hm.");
  EXPECT_EQ(output[1].at("content").at(0).at("text"), "I look.");
  EXPECT_EQ(output[2].at("type"), "function_call");
  EXPECT_EQ(output[2].at("arguments"), "{\"city\": \"上海\"}");
  EXPECT_EQ(answer.at("tools").at(0).at("name"), "f");
  EXPECT_GT(answer.at("usage").at("output_tokens_details").at("reasoning_tokens").as_int64(), 0);

  const std::vector<Event> events =
      stream("/v1/responses", R"({"input":"hi","stream":true,)" + tools + "}");
  EXPECT_EQ(
      names(events),
      (std::vector<std::string>{
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.reasoning_text.delta",
          "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.content_part.added", "response.output_text.delta",
          "response.output_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.function_call_arguments.delta",
          "response.function_call_arguments.done", "response.output_item.done",
          "response.completed"}));
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].data.at("sequence_number"), static_cast<std::int64_t>(i));
  }
  const json::array& streamed = events.back().data.at("response").at("output").as_array();
  ASSERT_EQ(streamed.size(), 3U);
  EXPECT_EQ(streamed[0].at("content"), output[0].at("content"));
  EXPECT_EQ(streamed[1].at("content"), output[1].at("content"));
  EXPECT_EQ(streamed[2].at("arguments"), output[2].at("arguments"));
}

TEST_F(DialectTest, ResponsesCanBeContinuedReadAndForgotten) {
  generator_.play("first");
  start();
  const json::value first =
      post("/v1/responses", R"({"input":"one","instructions":"Be brief."})").json();
  const std::string id(first.at("id").as_string());
  EXPECT_EQ(get("/v1/responses/" + id).json(), first);
  EXPECT_EQ(get("/v1/responses/" + id + "?include=a&stream=true").status, 400);
  EXPECT_EQ(get("/v1/responses/" + id + "?stream=false").json(), first);
  const ClientResponse second =
      post("/v1/responses", R"({"input":"two","previous_response_id":")" + id + "\"}");
  ASSERT_EQ(second.status, 200) << second.body;
  const json::value chat = json::parse(generator_.last_prompt());
  ASSERT_EQ(chat.as_array().size(), 3U) << "instructions are of one answer only";
  EXPECT_EQ(chat.at(0).at("content"), "one");
  EXPECT_EQ(chat.at(1).at("content"), "first");
  EXPECT_EQ(chat.at(2).at("content"), "two");
  TestClient stranger(server_->port());
  EXPECT_EQ(
      stranger.request("GET", "/v1/responses/" + id, {}, "Authorization: Bearer x\r\n").status,
      404);
  TestClient client(server_->port());
  EXPECT_EQ(client.request("DELETE", "/v1/responses/" + id, {}, {}).status, 200);
  EXPECT_EQ(get("/v1/responses/" + id).status, 404);
  const json::value unkept = post("/v1/responses", R"({"input":"x","store":false})").json();
  EXPECT_EQ(get("/v1/responses/" + std::string(unkept.at("id").as_string())).status, 404);
}

TEST_F(DialectTest, ResponsesReadItems) {
  start();
  const std::string body = R"({"input":[
      {"role":"user","content":[{"type":"input_text","text":"a"}]},
      {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"t"}]},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
      {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
      {"type":"function_call_output","call_id":"c1","output":"7"}],
      "reasoning":{"effort":"high"},"max_output_tokens":3})";
  const ClientResponse response = post("/v1/responses", body);
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(response.json().at("status"), "incomplete");
  EXPECT_EQ(response.json().at("incomplete_details").at("reason"), "max_output_tokens");
  const std::string prompt = generator_.last_prompt();
  const json::value chat = json::parse(prompt.substr(0, prompt.find("|extra:")));
  ASSERT_EQ(chat.as_array().size(), 3U) << prompt;
  EXPECT_EQ(chat.at(1).at("content"), "b");
  EXPECT_EQ(chat.at(1).at("reasoning_content"), "t");
  EXPECT_EQ(chat.at(1).at("tool_calls").at(0).at("id"), "c1");
  EXPECT_EQ(chat.at(2).at("role"), "tool");
  for (const std::string bad :
       {"{}", R"({"input":7})", R"({"input":[7]})", R"({"input":[{"type":"x"}]})",
        R"({"input":[{"type":"function_call"}]})", R"({"input":"x","background":true})",
        R"({"input":"x","tools":[{"type":"web_search"}]})", R"({"input":[]})"}) {
    EXPECT_EQ(post("/v1/responses", bad).status, 400) << bad;
  }
  const ClientResponse unknown =
      post("/v1/responses", R"({"input":"x","previous_response_id":"none"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json().at("error").at("param"), "previous_response_id");
}

TEST(ResponseStore, ForgetsTheOldestWhenItIsFull) {
  ResponseStore store(2, 10'000);
  for (const std::string id : {"a", "b", "c"}) store.add({id, "me", "{}", "[]"});
  EXPECT_EQ(store.find("a", "me"), nullptr);
  EXPECT_NE(store.find("c", "me"), nullptr);
  EXPECT_EQ(store.find("c", "you"), nullptr);
  store.add({"large", "me", std::string(20'000, 'x'), "[]"});
  EXPECT_EQ(store.find("large", "me"), nullptr);
  store.add({"half", "me", std::string(9'000, 'x'), "[]"});
  EXPECT_NE(store.find("half", "me"), nullptr);
  store.add({"other half", "me", std::string(5'000, 'x'), "[]"});
  EXPECT_EQ(store.find("half", "me"), nullptr) << "bytes count, not only answers";
  EXPECT_FALSE(store.erase("other half", "you"));
  EXPECT_TRUE(store.erase("other half", "me"));
}

}  // namespace
}  // namespace kun
