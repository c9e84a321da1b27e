// Who may do what, and what pages beside the API say.
#include <gmock/gmock.h>

#include "server/server_fixture.h"

namespace kun {
namespace {

namespace json = boost::json;

using AccessTest = ServerFixture;

TEST_F(AccessTest, KeysGuardEverythingButTheOpenPages) {
  options_.api_keys = {"one", "two"};
  start();
  for (const char* path : {"/v1/chat/completions", "/chat/completions", "/v1/completions",
                           "/completions", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(post(path, "{}").status, 401) << path;
    EXPECT_EQ(post(path, "{}", "Authorization: Bearer on\r\n").status, 401) << path;
    EXPECT_EQ(post(path, "{}", "Authorization: Bearer onee\r\n").status, 401) << path;
    EXPECT_EQ(post(path, "{}", "Authorization: one\r\n").status, 401) << path;
    const bool deepseek = std::string_view(path).starts_with("/c");
    EXPECT_EQ(post(path, "{}", "Authorization: Bearer two\r\n").status, deepseek ? 422 : 400)
        << path;
  }
  for (const char* path : {"/v1/models", "/models", "/v1/models/tiny"}) {
    EXPECT_EQ(get(path).status, 401) << path;
    EXPECT_EQ(get(path, "Authorization: bearer one\r\n").status, 200) << path;
  }
  for (const char* path : {"/health", "/ping", "/version", "/metrics"}) {
    EXPECT_EQ(get(path).status, 200) << path;
  }
  const ClientResponse refused = get("/v1/models");
  EXPECT_EQ(refused.json().at("error").at("type"), "AuthenticationError");
  EXPECT_EQ(refused.header("www-authenticate"), "Bearer");
}

TEST_F(AccessTest, PagesCanBeGuardedOrSwitchedOff) {
  options_.api_keys = {"one"};
  options_.metrics_access = PageAccess::kKey;
  options_.health_access = PageAccess::kOff;
  start();
  EXPECT_EQ(get("/metrics").status, 401);
  EXPECT_EQ(get("/metrics", "Authorization: Bearer one\r\n").status, 200);
  EXPECT_EQ(get("/health").status, 404);
}

TEST_F(AccessTest, WrongPathsMethodsAndTypesHaveTheirOwnAnswers) {
  start();
  const ClientResponse missing = get("/v1/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.json().at("error").at("type"), "NotFoundError");
  const ClientResponse wrong = get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST, OPTIONS");
  EXPECT_EQ(post("/v1/models", "{}").status, 405);
  TestClient client(server_->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
      "Content-Length: 14\r\n\r\n{\"prompt\":\"x\"}");
  EXPECT_EQ(client.read_response().status, 415);
  EXPECT_EQ(get("/\xFF\"<script>").json().at("error").at("code"), 404);
}

TEST_F(AccessTest, AnswersPreflightsWithoutAKey) {
  options_.api_keys = {"one"};
  start();
  TestClient client(server_->port());
  const ClientResponse response =
      client.request("OPTIONS", "/v1/chat/completions", {},
                     "Origin: http://a.example\r\nAccess-Control-Request-Method: POST\r\n"
                     "Access-Control-Request-Headers: authorization,content-type\r\n");
  EXPECT_EQ(response.status, 204);
  EXPECT_EQ(response.header("access-control-allow-origin"), "*");
  EXPECT_EQ(response.header("access-control-allow-headers"), "authorization,content-type");
  EXPECT_NE(response.header("access-control-allow-methods").find("POST"), std::string::npos);
}

TEST_F(AccessTest, NamesOnlyAllowedOrigins) {
  options_.cors.origins = {"http://good.example"};
  options_.cors.allow_credentials = true;
  start();
  const ClientResponse good = get("/version", "Origin: http://good.example\r\n");
  EXPECT_EQ(good.header("access-control-allow-origin"), "http://good.example");
  EXPECT_EQ(good.header("vary"), "Origin");
  EXPECT_EQ(good.header("access-control-allow-credentials"), "true");
  const ClientResponse bad = get("/version", "Origin: http://bad.example\r\n");
  EXPECT_EQ(bad.header("access-control-allow-origin"), "");
}

TEST_F(AccessTest, ListsModelsUnderAllTheirNames) {
  options_.root_path = "/proxy";
  start();
  const json::value list = get("/proxy/v1/models").json();
  ASSERT_EQ(list.at("data").as_array().size(), 2U);
  EXPECT_EQ(list.at("data").at(0).at("id"), "tiny");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), 4096);
  EXPECT_EQ(get("/v1/models/org%2Ftiny").json().at("id"), "org/tiny");
  EXPECT_EQ(get("/v1/models/org/tiny").status, 200);
  EXPECT_EQ(get("/v1/models/other").status, 404);
}

TEST_F(AccessTest, TellsHowFarLoadingIs) {
  start(false);
  server_->set_loading_progress(0.25, "reading layer 7");
  const ClientResponse health = get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json().at("status"), "loading");
  EXPECT_EQ(health.json().at("progress"), 0.25);
  EXPECT_EQ(health.json().at("message"), "reading layer 7");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 503);
  EXPECT_EQ(get("/v1/models").status, 503);
  EXPECT_EQ(get("/metrics").status, 200);
  set_model();
  EXPECT_EQ(get("/health").status, 200);
  EXPECT_EQ(post("/ping", "").status, 200);
  generator_.healthy_ = false;
  EXPECT_EQ(get("/health").status, 503);
  EXPECT_EQ(get("/health").json().at("status"), "stalled");
}

TEST_F(AccessTest, MetricsCountWhatHappened) {
  start();
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 200);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":1})").status, 400);
  const ClientResponse page = get("/metrics");
  EXPECT_TRUE(page.header("content-type").starts_with("text/plain; version=0.0.4"));
  const auto has = [&](const std::string& line) {
    EXPECT_NE(page.body.find(line + "\n"), std::string::npos) << line;
  };
  const std::string labels = R"(engine="0",model_name="tiny")";
  has("vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"tiny\"} 1");
  has("vllm:time_to_first_token_seconds_count{" + labels + "} 1");
  // Tokens that came together count as one gap, so their number depends on the machine's mood.
  EXPECT_THAT(page.body,
              testing::ContainsRegex("vllm:inter_token_latency_seconds_count.* [1-5]\n"));
  has("vllm:e2e_request_latency_seconds_count{" + labels + "} 1");
  for (const char* phase : {"queue", "inference", "prefill", "decode"}) {
    has("vllm:request_" + std::string(phase) + "_time_seconds_count{" + labels + "} 1");
  }
  has("vllm:request_generation_tokens_sum{" + labels + "} 6");
  has("vllm:request_max_num_generation_tokens_sum{" + labels + "} 6");
  has("vllm:request_params_max_tokens_bucket{" + labels + R"(,le="20"} 1)");
  has("vllm:generation_tokens_total{" + labels + "} 22");
  has("vllm:iteration_tokens_total_bucket{" + labels + R"(,le="1"} 3)");
  has("vllm:iteration_tokens_total_bucket{" + labels + R"(,le="16"} 4)");
  has("vllm:iteration_tokens_total_sum{" + labels + "} 19");
  has("vllm:spec_decode_num_drafts_total{" + labels + "} 5");
  has("vllm:spec_decode_num_draft_tokens_total{" + labels + "} 9");
  has("vllm:spec_decode_num_accepted_tokens_total{" + labels + "} 7");
  for (const auto& [position, count] : {std::pair("0", "4"), std::pair("1", "3")}) {
    has("vllm:spec_decode_num_accepted_tokens_per_pos_total{" + labels + ",position=\"" + position +
        "\"} " + count);
  }
  has(R"(vllm:cache_config_info{block_size="16",engine="0"} 1)");
  has(R"(http_requests_total{handler="/v1/completions",method="POST",status="200"} 1)");
  has(R"(http_requests_total{handler="/v1/completions",method="POST",status="400"} 1)");
  EXPECT_NE(page.body.find("process_resident_memory_bytes "), std::string::npos);
}

}  // namespace
}  // namespace kun
