// Failures of other servers in public reports, the whole kind of each: see
// tests/data/cases/verdicts.tsv for what is tested where.
#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "server/openapi.h"
#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

class ReportsTest : public ServerFixture {
 protected:
  // 400, 422 or the given status, in the dialect's envelope, with nothing in it that is nobody's
  // business: pointers, paths, source lines.
  void expect_refused(std::string_view path, std::string_view body) {
    static const std::regex kLeak("0x[0-9a-f]{6}|/home/|/root/|/usr/|\\.cc:|\\.h:|std::|boost");
    const ClientResponse response = post(path, body);
    const std::string shown(body.substr(0, 200));
    EXPECT_TRUE(response.status == 400 || response.status == 422) << path << " " << shown;
    const json::value answer = response.json();
    ASSERT_TRUE(answer.is_object() && answer.as_object().contains("error")) << response.body;
    EXPECT_FALSE(answer.at("error").at("message").as_string().empty());
    EXPECT_FALSE(std::regex_search(response.body, kLeak)) << response.body;
  }

  std::vector<std::string> post_paths() {
    std::vector<std::string> paths;
    const json::value document = get("/openapi.json").json();
    for (const auto& [path, operations] : document.at("paths").as_object()) {
      if (path != "/ping" && operations.as_object().contains("post")) paths.emplace_back(path);
    }
    return paths;
  }
};

TEST_F(ReportsTest, BodiesThatAreNoRequestAreRefusedOnEveryRoute) {
  start();
  for (const std::string& path : post_paths()) {
    for (const std::string_view body : {"{}", "[]", "null", "\"x\"", "1", "", "{", "\xff"}) {
      expect_refused(path, body);
    }
  }
}

// Every number of every route, from far below to far above its range, and of other kinds.
TEST_F(ReportsTest, NumbersOutOfRangeAreRefusedOnEveryRoute) {
  start();
  const json::value document = get("/openapi.json").json();
  for (const auto& [path, operations] : document.at("paths").as_object()) {
    const json::value* post_operation = operations.as_object().if_contains("post");
    if (post_operation == nullptr || !post_operation->as_object().contains("requestBody")) continue;
    const json::object& fields = post_operation->at("requestBody")
                                     .at("content")
                                     .at("application/json")
                                     .at("schema")
                                     .at("properties")
                                     .as_object();
    for (const auto& [name, field] : fields) {
      const json::object& schema = field.as_object();
      const json::value* type = schema.if_contains("type");
      if (type == nullptr || (type->at(0) != "integer" && type->at(0) != "number")) continue;
      std::vector<std::string> wrong = {"1e400", "NaN", "\"1\"", "true", "[1]", "{}"};
      if (schema.contains("minimum") && schema.contains("maximum")) {
        wrong.insert(wrong.end(),
                     {"-1e18", "1e18", "-9223372036854775808", "18446744073709551616"});
      }
      for (const std::string& value : wrong) {
        expect_refused(std::string(path), "{\"" + std::string(name) + "\":" + value + "}");
      }
    }
  }
}

TEST_F(ReportsTest, PromptsThatAreNoneAreRefused) {
  start();
  for (const std::string prompt :
       {R"("")", "[]", "[[]]", "[999999999]", "[-1]", "[1.5]", "[[1],[]]", "[\"\"]", "null", "{}",
        "[1,\"a\"]", "[[1,-1]]", "[null]"}) {
    expect_refused("/v1/completions", "{\"prompt\":" + prompt + "}");
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"still alive"})").status, 200);
}

TEST_F(ReportsTest, CountsWithoutBoundAreRefusedBeforeAnythingIsAllocated) {
  start();
  for (const std::string field : {"n", "best_of"}) {
    for (const std::string value : {"0", "-1", "1000000", "1000000000"}) {
      expect_refused("/v1/completions", R"({"prompt":"a",")" + field + "\":" + value + "}");
    }
  }
  expect_refused("/v1/chat/completions",
                 R"({"messages":[{"role":"user","content":"hi"}],"n":0,"stream":true})");
  EXPECT_EQ(generator_.running_count(), 0);
}

TEST_F(ReportsTest, StopStringsAreBounded) {
  start();
  const auto with = [](std::string_view stop) {
    return R"({"prompt":"a","max_tokens":4,"stop":)" + std::string(stop) + "}";
  };
  for (const std::string_view stop : {R"(["1","2","3","4","5"])", R"(["a","a"])", "[]", R"("x")"}) {
    EXPECT_EQ(post("/v1/completions", with(stop)).status, 200) << stop;
  }
  std::string hundred = "[";
  for (int i = 0; i < 100; ++i) hundred += "\"" + std::to_string(i) + "\",";
  hundred.back() = ']';
  for (const std::string& stop : {hundred, std::string(R"("")"), std::string(R"(["a",""])"),
                                  std::string("[1]"), "\"" + std::string(2000, 'x') + "\""}) {
    expect_refused("/v1/completions", with(stop));
  }
}

TEST_F(ReportsTest, MessagesThatAreNoneAreRefused) {
  start();
  for (const std::string messages :
       {"[]", "{}", R"([{"content":"Hello."}])", R"([{"role":"user"}])",
        R"([{"role":"user","content":[{"type":"text"}]}])",
        R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a/b"}}]}])",
        R"([{"role":"user","content":[{"type":"input_audio"}]}])",
        R"([{"role":"king","content":"x"}])", R"([{"role":"user","content":7}])", R"([7])"}) {
    expect_refused("/v1/chat/completions", "{\"messages\":" + messages + "}");
    expect_refused("/chat/completions", "{\"messages\":" + messages + "}");
  }
}

// Templates without tools add contents up; the null beside a call is an empty text to them.
TEST_F(ReportsTest, ContentsThatAreNullAreEmptyTextsToTemplatesThatAddThemUp) {
  options_.allow_request_chat_template = true;
  start();
  const std::string messages =
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":
         [{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
         {"role":"tool","tool_call_id":"c","content":"\"content\":null"}],)";
  const auto prompt = [&](const std::string& expression) {
    const ClientResponse response = post(
        "/v1/chat/completions", "{" + messages + R"("chat_template":"{% for m in messages %}{{ )" +
                                    expression + R"( }}{% endfor %}"})");
    EXPECT_EQ(response.status, 200) << response.body;
    return generator_.last_prompt();
  };
  EXPECT_EQ(prompt("m['role'] + ':' + m['content'] + ';'"),
            "user:a;assistant:;tool:\"content\":null;");
  EXPECT_EQ(prompt("'null;' if m['content'] is none else m['role'] + ';'"), "user;null;tool;");
}

TEST_F(ReportsTest, BiasOfTokensThatAreNoneIsRefused) {
  start();
  for (const std::string bias : {R"({"191222":-100})", R"({"AI":-100})", R"({"-1":1})",
                                 R"({"1":101})", R"({"1":"x"})", R"({"":1})", "[1]"}) {
    expect_refused("/v1/completions", R"({"prompt":"a","logit_bias":)" + bias + "}");
  }
}

TEST_F(ReportsTest, TokenLimitsThatAreNoneAreRefused) {
  start();
  for (const std::string ids : {"[]", "[-1]", "[257]", "[1e9]", "[\"a\"]", "{}", "[1.5]"}) {
    expect_refused("/v1/completions", R"({"prompt":"a","allowed_token_ids":)" + ids + "}");
  }
  for (const std::string words : {"[\"\"]", "[1]", "{}", "\"a\""}) {
    expect_refused("/v1/completions", R"({"prompt":"a","bad_words":)" + words + "}");
  }
  EXPECT_EQ(
      post("/v1/completions", R"({"prompt":"a","allowed_token_ids":[7,3],"bad_words":["x","yz"]})")
          .status,
      200);
  EXPECT_EQ(generator_.last().sampling.allowed_tokens, (std::vector<Token>{3, 7}));
  EXPECT_EQ(generator_.last().sampling.bad_words.size(), 4U) << "each with a space before it, too";
}

TEST_F(ReportsTest, LogprobsAreBoundedAndNeedToBeAskedFor) {
  start();
  const std::string hi = R"({"messages":[{"role":"user","content":"hi"}],)";
  expect_refused("/v1/completions", R"({"prompt":"a","logprobs":21})");
  expect_refused("/v1/chat/completions", hi + R"("logprobs":true,"top_logprobs":21})");
  expect_refused("/v1/chat/completions", hi + R"("top_logprobs":2})");
  const json::value zero = post("/v1/completions", R"({"prompt":"a","logprobs":0})").json();
  EXPECT_TRUE(zero.at("choices").at(0).at("logprobs").is_object());
}

// No spelling of a path, and no Host, leads past the key.
TEST_F(ReportsTest, NoSpellingOfAPathLeadsPastTheKey) {
  options_.api_keys = {"secret"};
  start();
  for (const std::string path :
       {"/v1/models", "/v1/completions", "//v1/models", "/v1//models", "/v1/models/", "/V1/models",
        "/%761/models", "/v1/%6dodels", "/v1/../v1/models", "/./v1/models", "/v1/models?x=/health",
        "/health/../v1/models", "/v1/models;x", "http://a/v1/models", "/tokenize", "/openapi.json",
        "/v1/responses/x", "/health%2f..%2fv1/models"}) {
    for (const std::string host : {"a", "a/v1/models?x", "health", "a?b", "/health"}) {
      for (const std::string method : {"GET", "POST"}) {
        TestClient client(server_->port());
        client.send(method + " " + path + " HTTP/1.1\r\nHost: " + host +
                    "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        const ClientResponse response = client.read_response();
        EXPECT_TRUE(response.status == 401 || response.status == 404 || response.status == 405 ||
                    response.status == 400)
            << method << " " << path << " " << host << " " << response.status;
      }
    }
  }
}

TEST_F(ReportsTest, EveryAddedTokenMayBeTyped) {
  start();
  for (const std::string text :
       {"<｜end▁of▁sentence｜>", "<|im_end|>", "</s>", "<think>", "<tool_call>", "<|image_pad|>"}) {
    std::string many;
    for (int i = 0; i < 100; ++i) many += text;
    const std::string body = R"({"messages":[{"role":"user","content":")" + many + R"("}]})";
    EXPECT_EQ(post("/v1/chat/completions", body).status, 200) << text;
  }
}

TEST_F(ReportsTest, EveryChunkButTheFirstSaysSomething) {
  start();
  const ClientResponse response = post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"stop":["XXXXXXXXXXXXXXXX"]})");
  std::set<std::string> constant;
  int said = 0;
  const std::vector<std::string> events = sse_data(response.body);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) {
    const json::value chunk = json::parse(events[i]);
    constant.insert(json::serialize(chunk.at("id")) + json::serialize(chunk.at("created")) +
                    json::serialize(chunk.at("model")));
    const json::object& delta = chunk.at("choices").at(0).at("delta").as_object();
    EXPECT_EQ(delta.contains("role"), i == 0);
    if (i == 0 || chunk.at("choices").at(0).at("finish_reason").is_string()) continue;
    EXPECT_FALSE(delta.at("content").as_string().empty());
    ++said;
  }
  EXPECT_EQ(constant.size(), 1U);
  EXPECT_LE(said, 6);
}

// Large bodies keep the threads for text busy, not those that answer probes.
TEST_F(ReportsTest, ProbesAreAnsweredWhileHugePromptsAreRead) {
  start();
  std::string body = R"({"messages":[{"role":"user","content":")";
  body += std::string(std::size_t{4} << 20U, 'a') + "\"}]}";
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<TestClient>(server_->port()));
    clients.back()->send_request("POST", "/v1/chat/completions", body);
  }
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(get("/health").status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
  }
  for (const auto& client : clients) EXPECT_EQ(client->read_response().status, 400) << "too long";
}

// "Suite.Name" of every test in the repository.
std::set<std::string> all_tests() {
  static const std::regex kTest(R"(TEST(_F|_P)?\((\w+),\s*(\w+)\))");
  std::set<std::string> names;
  const std::filesystem::path root = std::filesystem::path(KUN_TEST_DATA) / "../..";
  for (const char* folder : {"src", "tests"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      if (!entry.path().filename().string().ends_with("_test.cc")) continue;
      std::ifstream file(entry.path());
      const std::string text(std::istreambuf_iterator<char>(file), {});
      for (std::sregex_iterator match(text.begin(), text.end(), kTest), end; match != end;
           ++match) {
        names.insert((*match)[2].str() + "." + (*match)[3].str());
      }
    }
  }
  return names;
}

// The list of reports: each is tested by tests that exist, or has a reason why not.
TEST(PublicReports, EachIsTestedOrExplained) {
  std::ifstream file(std::string(KUN_TEST_DATA) + "/cases/verdicts.tsv");
  ASSERT_TRUE(file);
  const std::set<std::string> tests = all_tests();
  std::set<std::string> seen;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const std::size_t first = line.find('\t');
    const std::size_t second = line.find('\t', first + 1);
    ASSERT_NE(second, std::string::npos) << line;
    EXPECT_TRUE(seen.insert(line.substr(0, first)).second) << line;
    const std::string verdict = line.substr(first + 1, second - first - 1);
    EXPECT_TRUE(verdict == "tested" || verdict == "not applicable") << line;
    EXPECT_GT(line.size() - second, 10U) << line << " has no reason";
    std::istringstream names(line.substr(second + 1));
    for (std::string name; verdict == "tested" && names >> name;) {
      EXPECT_TRUE(tests.contains(name)) << line << ": there is no test " << name;
    }
  }
  EXPECT_EQ(seen.size(), 96U + 59U);
  std::size_t known = 0;
  for (const std::string name : {"issues.jsonl", "security.jsonl"}) {
    std::ifstream shared(std::string(KUN_SHARED_DATA) + "/cases/" + name);
    if (!shared) GTEST_SKIP() << "shared/data/cases is not here";
    for (std::string line; std::getline(shared, line);) {
      const std::string id(json::parse(line).at("id").as_string());
      EXPECT_TRUE(seen.contains(id)) << id;
      ++known;
    }
  }
  EXPECT_EQ(known, seen.size()) << "and none is listed that there is not";
}

}  // namespace
}  // namespace kun
