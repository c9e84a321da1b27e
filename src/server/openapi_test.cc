// /openapi.json says what the code does: every route answers, every field is really read.
#include "server/openapi.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>

#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

class OpenApiTest : public ServerFixture {
 protected:
  static const json::object& fields(const json::value& document, std::string_view path) {
    return document.at("paths")
        .at(path)
        .at("post")
        .at("requestBody")
        .at("content")
        .at("application/json")
        .at("schema")
        .at("properties")
        .as_object();
  }

  // What every request of a route needs, so that nothing else is wrong with it.
  static std::string needed(std::string_view path, std::string_view but) {
    const std::string messages = R"("messages":[{"role":"user","content":"a"}],)";
    if (but != "messages" && path.find("/chat/") != std::string_view::npos) return messages;
    if (but != "messages" && path == "/tokenize" && but != "prompt") return messages;
    if (path.starts_with("/v1/messages")) {
      return (but == "messages" ? "" : messages) +
             (but == "max_tokens" ? "" : R"("max_tokens":5,)");
    }
    if (but != "prompt" && path.ends_with("completions")) return R"("prompt":"a",)";
    if (but != "input" && path == "/v1/responses") return R"("input":"a",)";
    if (but != "messages" && path == "/v1/embeddings") return messages;
    if (path.ends_with("/score")) {
      return std::string(but == "text_1" ? "" : R"("text_1":"a",)") +
             (but == "text_2" ? "" : R"("text_2":"a",)");
    }
    return "";
  }

  static std::string with_id(std::string_view path) {
    const std::size_t at = path.find("{id}");
    return at == std::string_view::npos ? std::string(path) : std::string(path.substr(0, at)) + "x";
  }

  // A value that no field of that type takes.
  static std::string wrong_value(const json::object& field) {
    const json::value* type = field.if_contains("type");
    if (type == nullptr) return "";
    return type->at(0) == "string" ? "7" : R"("wrong")";
  }
};

TEST_F(OpenApiTest, EveryRouteItNamesAnswers) {
  start();
  const json::value document = get("/openapi.json").json();
  for (const auto& [path, operations] : document.at("paths").as_object()) {
    for (const auto& [method, operation] : operations.as_object()) {
      std::string name(method);
      for (char& c : name) c = static_cast<char>(std::toupper(c));
      TestClient client(server_->port());
      const ClientResponse response =
          client.request(name, with_id(path), name == "POST" ? "{}" : "", "");
      EXPECT_NE(response.status, 405) << name << " " << path;
      const bool by_id = path.find("{id}") != std::string_view::npos;
      EXPECT_EQ(response.status == 404, by_id) << name << " " << path;
      EXPECT_LT(response.status, 500) << name << " " << path;
    }
  }
}

std::string_view kind_of(const json::value& value) {
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  if (value.is_string()) return "string";
  if (value.is_bool()) return "boolean";
  if (value.is_null()) return "null";
  return value.is_double() ? "number" : "integer";
}

// What is wrong with `value` by the part of JSON Schema that the document uses; empty: nothing.
std::string fault(const json::value& document, const json::object& schema, const json::value& value,
                  const std::string& where) {
  if (const json::value* reference = schema.if_contains("$ref")) {
    const std::string name(reference->as_string().subview(sizeof("#/components/schemas/") - 1));
    return fault(document, document.at("components").at("schemas").at(name).as_object(), value,
                 where);
  }
  if (const json::value* wanted = schema.if_contains("const"); wanted && *wanted != value) {
    return where + " is not the constant";
  }
  if (const json::value* all = schema.if_contains("enum")) {
    if (std::ranges::count(all->as_array(), value) == 0) return where + " is none of the values";
  }
  if (const json::value* type = schema.if_contains("type")) {
    const json::array kinds = type->is_array() ? type->as_array() : json::array{*type};
    const std::string_view kind = kind_of(value);
    const bool fits = std::ranges::count(kinds, json::value(kind)) > 0 ||
                      (kind == "integer" && std::ranges::count(kinds, json::value("number")) > 0);
    if (!fits) return where + " has the wrong type";
  }
  if (value.is_object()) {
    if (const json::value* required = schema.if_contains("required")) {
      for (const json::value& name : required->as_array()) {
        if (!value.as_object().contains(name.as_string())) {
          return where + " has no " + std::string(name.as_string());
        }
      }
    }
    if (const json::value* properties = schema.if_contains("properties")) {
      for (const auto& [name, member] : properties->as_object()) {
        const json::value* own = value.as_object().if_contains(name);
        if (own == nullptr) continue;
        const std::string wrong =
            fault(document, member.as_object(), *own, where + "." + std::string(name));
        if (!wrong.empty()) return wrong;
      }
    }
  }
  if (value.is_array() && schema.contains("items")) {
    for (const json::value& item : value.as_array()) {
      const std::string wrong = fault(document, schema.at("items").as_object(), item, where + "[]");
      if (!wrong.empty()) return wrong;
    }
  }
  return {};
}

TEST_F(OpenApiTest, AnswersAndErrorsAreWhatTheSchemasSay) {
  start();
  const json::value document = get("/openapi.json").json();
  const auto check = [&](const std::string& method, const std::string& path, const std::string& url,
                         const std::string& body, int status) {
    TestClient client(server_->port());
    const ClientResponse response = client.request(method, url, body, "");
    ASSERT_EQ(response.status, status) << url << " " << response.body;
    std::string name(method);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    const json::value& schema = document.at("paths")
                                    .at(path)
                                    .at(name)
                                    .at("responses")
                                    .at(status == 200 ? "200" : "4XX")
                                    .at("content")
                                    .at("application/json")
                                    .at("schema");
    EXPECT_TRUE(schema.as_object().contains("$ref")) << path;
    EXPECT_EQ(fault(document, schema.as_object(), response.json(), path), "") << response.body;
  };
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":3})";
  const std::vector<std::pair<std::string, std::string>> posts = {
      {"/v1/chat/completions", messages},
      {"/chat/completions", messages},
      {"/v1/completions", R"({"prompt":"a","logprobs":1})"},
      {"/completions", R"({"prompt":"a"})"},
      {"/v1/responses", R"({"input":"a"})"},
      {"/v1/messages", messages},
      {"/v1/messages/count_tokens", messages},
      {"/v1/embeddings", R"({"input":["a","b"]})"},
      {"/v1/score", R"({"text_1":"a","text_2":"b"})"},
      {"/tokenize", R"({"prompt":"a","return_token_strs":true})"},
      {"/detokenize", R"({"tokens":[97]})"}};
  for (const auto& [path, body] : posts) {
    check("POST", path, path, body, 200);
    check("POST", path, path, "{}",
          path.starts_with("/v1") || path.ends_with("tokenize") ? 400 : 422);
    const json::value& answers = document.at("paths").at(path).at("post").at("responses");
    if (const json::value* events =
            answers.at("200").at("content").as_object().if_contains("text/event-stream")) {
      EXPECT_EQ(fault(document, events->at("schema").as_object(), {{"data", "{}"}}, path), "");
    }
  }
  for (const std::string path : {"/v1/models", "/models", "/version"}) {
    check("GET", path, path, "", 200);
  }
  const json::value answer = post("/v1/responses", R"({"input":"a"})").json();
  const std::string id(answer.at("id").as_string());
  check("GET", "/v1/responses/{id}", "/v1/responses/" + id, "", 200);
  check("DELETE", "/v1/responses/{id}", "/v1/responses/" + id, "", 200);
  check("GET", "/v1/responses/{id}", "/v1/responses/" + id, "", 404);
  check("GET", "/v1/models/{id}", "/v1/models/nobody", "", 404);
}

TEST_F(OpenApiTest, KnowsHowAnswersEndWhoseTimeIsOver) {
  start();
  Script script;
  script.text = "Hello";
  script.timeout_after = 2;
  generator_.play(script);
  const json::value document = get("/openapi.json").json();
  const json::value& reasons = document.at("components").at("schemas").at("FinishReason");
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":9})";
  for (const char* path : {"/v1/chat/completions", "/chat/completions"}) {
    const json::value answer = post(path, chat).json();
    const json::value& reason = answer.at("choices").at(0).at("finish_reason");
    EXPECT_NE(std::ranges::find(reasons.at("enum").as_array(), reason),
              reasons.at("enum").as_array().end())
        << json::serialize(reason);
  }
}

TEST_F(OpenApiTest, EveryFieldItNamesIsRead) {
  start();
  const json::value document = get("/openapi.json").json();
  for (const auto& [path, operations] : document.at("paths").as_object()) {
    if (!operations.as_object().contains("post") ||
        !operations.at("post").as_object().contains("requestBody")) {
      continue;
    }
    const json::object& all = fields(document, path);
    EXPECT_GE(all.size(), 2U) << path;
    for (const auto& [name, field] : all) {
      const std::string wrong = wrong_value(field.as_object());
      if (wrong.empty()) continue;
      const std::string body =
          "{" + needed(path, name) + "\"" + std::string(name) + "\":" + wrong + "}";
      const ClientResponse response = post(std::string(path), body);
      EXPECT_TRUE(response.status == 400 || response.status == 422) << path << " " << body;
      EXPECT_NE(response.body.find(std::string(name)), std::string::npos)
          << path << " " << body << " " << response.body;
    }
  }
}

// clang-format off
constexpr std::string_view kChatFields[] = {
    "messages", "model", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs",
    "top_logprobs", "max_tokens", "max_completion_tokens", "n", "response_format", "seed", "stop",
    "stream", "stream_options", "temperature", "top_p", "tools", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "user", "use_beam_search", "top_k", "min_p",
    "repetition_penalty", "length_penalty", "stop_token_ids", "include_stop_str_in_output",
    "ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens",
    "truncate_prompt_tokens", "truncation_side", "prompt_logprobs", "allowed_token_ids",
    "bad_words", "echo", "add_generation_prompt", "continue_final_message", "add_special_tokens",
    "documents", "chat_template", "chat_template_kwargs", "media_io_kwargs",
    "mm_processor_kwargs", "structured_outputs", "priority", "request_id",
    "return_tokens_as_token_ids", "return_token_ids", "return_prompt_text", "cache_salt",
    "kv_transfer_params", "vllm_xargs", "repetition_detection", "thinking_token_budget",
    "include_reasoning", "thinking", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "audio", "modalities", "prediction", "web_search_options", "store",
    "metadata", "service_tier", "functions", "function_call", "verbosity", "safety_identifier",
    "prompt_cache_key",
};
// clang-format on

TEST_F(OpenApiTest, NamesEveryFieldThatVllmAndOpenAiHave) {
  start();
  const json::value document = get("/openapi.json").json();
  const json::object& chat = fields(document, "/v1/chat/completions");
  for (const std::string_view name : kChatFields) {
    EXPECT_TRUE(chat.contains(name)) << name;
  }
  const json::object& text = fields(document, "/v1/completions");
  for (const std::string_view name : {"prompt", "suffix", "echo", "best_of", "logprobs",
                                      "max_tokens", "n", "stop", "prompt_embeds"}) {
    EXPECT_TRUE(text.contains(name)) << name;
  }
}

// Names of all properties of a schema, wherever its parts are written.
void collect_fields(const json::value& document, const json::value& schema,
                    std::set<std::string>& names) {
  const json::object& object = schema.as_object();
  if (const json::value* ref = object.if_contains("$ref")) {
    const std::string_view pointer = ref->as_string();
    return collect_fields(document, document.at_pointer(pointer.substr(1)), names);
  }
  if (const json::value* properties = object.if_contains("properties")) {
    for (const auto& member : properties->as_object()) names.emplace(member.key());
  }
  for (const char* parts : {"allOf", "anyOf", "oneOf"}) {
    const json::value* list = object.if_contains(parts);
    for (std::size_t i = 0; list != nullptr && i < list->as_array().size(); ++i) {
      collect_fields(document, list->at(i), names);
    }
  }
}

TEST_F(OpenApiTest, KnowsTheFieldsOfOpenAisOwnDocument) {
  std::ifstream file(std::string(KUN_SHARED_DATA) +
                     "/openapi/openai_openapi.inference_subset.json");
  if (!file) GTEST_SKIP() << "shared/data/openapi is not here";
  start();
  const json::value document = get("/openapi.json").json();
  const json::value openai = json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  for (const std::string path :
       {"/chat/completions", "/completions", "/embeddings", "/responses"}) {
    const json::value& body = openai.at("paths").at(path).at("post").at("requestBody");
    std::set<std::string> names;
    collect_fields(openai, body.at("content").at("application/json").at("schema"), names);
    EXPECT_GE(names.size(), 5U) << path;
    const json::object& known = fields(document, "/v1" + path);
    for (const std::string& name : names) EXPECT_TRUE(known.contains(name)) << path << " " << name;
  }
}

TEST_F(OpenApiTest, CallsNothingNeededThatHasAnotherName) {
  start();
  const json::value document = get("/openapi.json").json();
  const auto schema = [&](std::string_view path) {
    const json::value& body = document.at("paths").at(path).at("post").at("requestBody");
    return body.at("content").at("application/json").at("schema").as_object();
  };
  EXPECT_FALSE(schema("/v1/score").contains("required")) << "queries and items do as well";
  EXPECT_EQ(schema("/v1/responses").at("required"), (json::array{"input"}));
}

TEST_F(OpenApiTest, SaysThatDeadlinesEndIn504) {
  start();
  const json::value document = get("/openapi.json").json();
  for (const auto& [path, operations] : document.at("paths").as_object()) {
    const json::value* post = operations.as_object().if_contains("post");
    if (post == nullptr || !post->as_object().contains("requestBody")) continue;
    EXPECT_EQ(post->at("responses").as_object().contains("504"),
              fields(document, path).contains("timeout_ms") && !path.ends_with("/count_tokens"))
        << path;
  }
}

TEST_F(OpenApiTest, TheManualExplainsEveryRouteAndField) {
  std::ifstream file(std::string(KUN_TEST_DATA) + "/../../docs/api.md");
  ASSERT_TRUE(file);
  const std::string manual(std::istreambuf_iterator<char>(file), {});
  start();
  const json::value document = get("/openapi.json").json();
  for (const auto& [path, operations] : document.at("paths").as_object()) {
    EXPECT_NE(manual.find("`" + std::string(path) + "`"), std::string::npos) << path;
  }
  for (const std::string_view path : {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                      "/v1/messages", "/v1/embeddings", "/v1/score", "/tokenize"}) {
    for (const auto& member : fields(document, path)) {
      EXPECT_NE(manual.find("`" + std::string(member.key()) + "`"), std::string::npos)
          << path << " " << member.key();
    }
  }
}

}  // namespace
}  // namespace kun
