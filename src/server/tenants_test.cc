// Tenants, deadlines and memory as clients of the server see them.
#include <gmock/gmock.h>

#include <set>

#include "server/server_fixture.h"
#include "server/tenant_keys.h"
#include "server/tenant_metrics.h"

namespace kun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(TenantKeys, AreReadWithNamesAndWeights) {
  const auto keys = parse_api_keys(
      "# who pays\n"
      "k1 alice 3\n"
      "\n"
      "k2\tbob   # half a share\r\n"
      "k3\n"
      "k4 alice\n"
      "k5 bob 0.5");
  ASSERT_TRUE(keys) << keys.error().message();
  const std::vector<ApiKey>& all = *keys;
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].key, "k1");
  EXPECT_EQ(all[0].tenant, "alice");
  EXPECT_EQ(all[0].weight, 3.0);
  EXPECT_EQ(all[1].tenant, "bob");
  EXPECT_EQ(all[1].weight, 0.5);  // said once, for all keys of the tenant
  EXPECT_EQ(all[2].tenant, "key5");
  EXPECT_EQ(all[2].weight, 1.0);
  EXPECT_EQ(all[3].weight, 3.0);
}

TEST(TenantKeys, ThatMakeNoSenseAreRefusedByLine) {
  for (const auto& [text, what] :
       {std::pair{"k a 1 x", "line 1"}, std::pair{"k a\nk b", "line 2"},
        std::pair{"k a 0", "weight"}, std::pair{"k a nan", "weight"},
        std::pair{"k a 1e9", "weight"}, std::pair{"k a 3x", "weight"},
        std::pair{"k \"a\"", "characters"}, std::pair{"k a 1\nl a 2", "another weight"}}) {
    const auto keys = parse_api_keys(text);
    ASSERT_FALSE(keys) << text;
    EXPECT_THAT(keys.error().message(), HasSubstr(what));
    EXPECT_THAT(keys.error().message(), HasSubstr("line"));
  }
}

class TenantTest : public ServerFixture {
 protected:
  // The tenant and the weight that a request with that header reached the engine with.
  std::pair<std::string, double> payer(std::string_view header) {
    EXPECT_EQ(post("/v1/completions", kBody, std::string(header) + "\r\n").status, 200) << header;
    return {generator_.last().tenant, generator_.last().tenant_weight};
  }

  static constexpr std::string_view kBody = R"({"prompt":"x","max_tokens":2})";
};

TEST_F(TenantTest, TheKeyOfARequestSaysWhoPays) {
  options_.api_keys = {"plain"};
  options_.tenant_keys = {{"k1", "alice", 3.0}, {"k2", "bob", 0.5}};
  start();
  EXPECT_EQ(post("/v1/completions", kBody).status, 401);
  EXPECT_EQ(post("/v1/completions", kBody, "Authorization: Bearer k3\r\n").status, 401);
  EXPECT_EQ(payer("Authorization: Bearer k1"), std::pair(std::string("alice"), 3.0));
  EXPECT_EQ(payer("x-api-key: k2"), std::pair(std::string("bob"), 0.5));
  EXPECT_EQ(payer("Authorization: Bearer plain"), std::pair(std::string("key1"), 1.0));
}

TEST_F(TenantTest, WithoutKeysAllAreOneTenant) {
  start();
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","max_tokens":2,"cache_salt":"s"})",
                 "x-api-key: k2\r\n")
                .status,
            200);
  EXPECT_EQ(generator_.last().tenant, "");
  EXPECT_EQ(generator_.last().cache_salt, "s");
}

class IsolationTest : public ServerFixture {
 protected:
  IsolationTest() {
    options_.tenant_keys = {
        {"k1", "alice", 1.0}, {"k2", "alice", 1.0}, {"k3", "bob", 1.0}, {"k4", "bo", 1.0}};
  }

  // Of a request with that key on that route.
  std::string salt(std::string_view key, std::string_view field = "",
                   std::string_view path = "/v1/completions") {
    const std::string name = path == "/v1/embeddings" ? "input" : "prompt";
    const ClientResponse response = post(path, "{\"" + name + "\":\"x\"" + std::string(field) + "}",
                                         "Authorization: Bearer " + std::string(key) + "\r\n");
    EXPECT_EQ(response.status, 200) << response.body;
    return generator_.last().cache_salt;
  }
};

TEST_F(IsolationTest, GivesEachTenantACacheOfItsOwn) {
  start();
  const std::set<std::string> salts = {salt("k1"),
                                       salt("k3"),
                                       salt("k4"),
                                       salt("k1", R"(,"cache_salt":"s")"),
                                       salt("k3", R"(,"cache_salt":"s")"),
                                       salt("k4", R"(,"cache_salt":"b")")};
  EXPECT_EQ(salts.size(), 6U);
  EXPECT_FALSE(salts.contains(""));
  EXPECT_EQ(salt("k1"), salt("k2"));
  // Nobody can write himself into another's.
  EXPECT_NE(salt("k4", R"(,"cache_salt":"5:alice")"), salt("k1"));
  EXPECT_EQ(salt("k1", "", "/v1/embeddings"), salt("k1"));
  EXPECT_NE(salt("k3", "", "/v1/embeddings"), salt("k1"));
}

TEST_F(IsolationTest, IsLeftOutWhereTheOperatorSaysSo) {
  options_.isolate_tenants = false;
  start();
  EXPECT_EQ(salt("k1"), "");
  EXPECT_EQ(salt("k3", R"(,"cache_salt":"s")"), "s");
  EXPECT_EQ(generator_.last().tenant, "bob");
}

TEST(TenantMetrics, AreBoundedInNumberWhoeverComes) {
  std::vector<TenantStats> tenants;
  for (int i = 0; i < 500; ++i) {
    TenantStats& tenant = tenants.emplace_back();
    tenant.name = "tenant" + std::to_string(i);
    tenant.output_token_count = static_cast<std::uint64_t>(i);
    tenant.refused_count = 1;
  }
  const std::string text = tenant_metrics(tenants, "m");
  EXPECT_LT(std::ranges::count(text, '\n'), 500);
  EXPECT_THAT(text, HasSubstr("kun:tenant_generation_tokens_total{model_name=\"m\","
                              "tenant=\"tenant499\"} 499\n"));
  EXPECT_THAT(text, HasSubstr("kun:tenant_refused_total{model_name=\"m\",tenant=\"other\"} 450\n"));
  EXPECT_THAT(text, Not(HasSubstr("tenant=\"tenant3\"")));
}

class DeadlineTest : public ServerFixture {
 protected:
  // What a client sees of the engine's refusal.
  ClientResponse refused(Status status, Refusal why) {
    Script script;
    script.refusal = std::move(status);
    script.why = why;
    generator_.play(script);
    return post("/v1/completions", R"({"prompt":"x"})");
  }
};

TEST_F(DeadlineTest, AreReadInEveryDialectAndCountFromTheArrival) {
  start();
  const std::string fields = R"("ttft_slo_ms":5000,"tpot_slo_ms":80.5,"timeout_ms":60000)";
  const std::string chat = R"("messages":[{"role":"user","content":"x"}],"max_tokens":2,)";
  for (const auto& [path, body] :
       {std::pair{"/v1/completions", "{\"prompt\":\"x\"," + fields + "}"},
        std::pair{"/v1/chat/completions", "{" + chat + fields + "}"},
        std::pair{"/chat/completions", "{" + chat + fields + "}"},
        std::pair{"/v1/messages", "{\"model\":\"tiny\"," + chat + fields + "}"},
        std::pair{"/v1/responses", "{\"input\":\"x\"," + fields + "}"}}) {
    const ClientResponse response = post(path, body);
    EXPECT_EQ(response.status, 200) << path << response.body;
    const Deadlines deadlines = generator_.last().deadlines;
    EXPECT_LE(deadlines.first_token, 5'000'000) << path;
    EXPECT_GT(deadlines.first_token, 4'000'000) << path;
    EXPECT_EQ(deadlines.per_token, 80'500) << path;
    EXPECT_LE(deadlines.total, 60'000'000) << path;
    EXPECT_GT(deadlines.total, 59'000'000) << path;
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","timeout_ms":-1})").status, 400);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"x","ttft_slo_ms":"soon"})").status, 400);
}

TEST_F(DeadlineTest, TheServersOwnHoldForRequestsWithoutAny) {
  options_.limits.timeout = std::chrono::milliseconds(7000);
  start();
  post("/v1/completions", R"({"prompt":"x","max_tokens":2})");
  EXPECT_GT(generator_.last().deadlines.total, 6'000'000);
  post("/v1/completions", R"({"prompt":"x","max_tokens":2,"timeout_ms":0})");
  EXPECT_EQ(generator_.last().deadlines.total, 0);
}

TEST_F(DeadlineTest, RefusalsHaveAStableCodeAndSayWhenToComeBack) {
  start();
  struct Case {
    Status status;
    Refusal why;
    int http;
    std::string_view seconds;
    std::string_view milliseconds;
  };
  for (const Case& each :
       {Case{unavailable("it would be late"),
             {kCodeDeadlineUnreachable, 2'345'678},
             503,
             "3",
             "2346"},
        Case{resource_exhausted("full"), {kCodeQueueFull, 40'000}, 429, "1", "40"},
        Case{invalid_argument("never"), {kCodeDeadlineImpossible, 0}, 400, "", ""}}) {
    const ClientResponse response = refused(each.status, each.why);
    EXPECT_EQ(response.status, each.http);
    EXPECT_EQ(std::string(response.json().at("error").at("code").as_string()), each.why.code);
    EXPECT_EQ(response.header("retry-after"), each.seconds);
    EXPECT_EQ(response.header("retry-after-ms"), each.milliseconds);
  }
}

TEST_F(DeadlineTest, AnAnswerWhoseTimeIsOverEndsAsItsDialectHasIt) {
  start();
  Script script;
  script.text = "Hello";
  script.timeout_after = 2;
  generator_.play(script);
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":9})";
  const auto openai = post("/v1/chat/completions", chat);
  EXPECT_EQ(openai.status, 200);
  EXPECT_EQ(openai.json().at("choices").at(0).at("finish_reason"), "abort");
  EXPECT_EQ(openai.json().at("choices").at(0).at("message").at("content"), "He");
  EXPECT_EQ(post("/chat/completions", chat).json().at("choices").at(0).at("finish_reason"),
            "insufficient_system_resource");
  EXPECT_EQ(post("/v1/messages", chat).json().at("stop_reason"), "max_tokens");
  EXPECT_EQ(post("/v1/responses", R"({"input":"x"})").json().at("status"), "incomplete");
  const auto stream = post("/v1/completions", R"({"prompt":"x","stream":true})");
  EXPECT_THAT(stream.body, HasSubstr("\"finish_reason\":\"abort\""));
  EXPECT_THAT(stream.body, HasSubstr("[DONE]"));

  // As a reader finds it who was away for a while.
  script.tokens_per_step = 2;
  generator_.play(script);
  const auto together = post("/v1/chat/completions", chat);
  EXPECT_EQ(together.status, 200);
  EXPECT_EQ(together.json().at("choices").at(0).at("message").at("content"), "He");

  script.timeout_after = 0;
  generator_.play(script);
  const auto silent = post("/v1/chat/completions", chat);
  EXPECT_EQ(silent.status, 504);
  EXPECT_EQ(silent.json().at("error").at("code"), "timeout");
  EXPECT_EQ(silent.json().at("error").at("type"), "TimeoutError");
}

class MemoryTest : public ServerFixture {
 protected:
  MemoryTest() {
    memory_ = std::make_shared<MemoryLedger>();
    memory_->set_limits(4U << 20U, 0);
    options_.memory = memory_;
    context_length_ = 1 << 20;
  }
  std::shared_ptr<MemoryLedger> memory_;
};

TEST_F(MemoryTest, WhatARequestMayNeedIsHeldUntilItIsAnswered) {
  Script script;
  script.endless = true;
  script.step = std::chrono::milliseconds(1);
  generator_.play(script);
  start();
  TestClient first(server_->port());
  first.send_request("POST", "/v1/completions",
                     R"({"prompt":"x","max_tokens":4000,"logprobs":5,"ignore_eos":true})");
  ASSERT_TRUE(eventually([&] { return generator_.running_count() == 1; }));
  EXPECT_GT(memory_->held(MemoryUse::kRequests), 1U << 20U);
  const auto refused =
      post("/v1/completions", R"({"prompt":"x","max_tokens":4000,"logprobs":5,"ignore_eos":true})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.json().at("error").at("code"), "memory_exhausted");
  EXPECT_NE(refused.header("retry-after"), "");
  const auto never = post("/v1/completions", R"({"prompt":"x","max_tokens":4000,"n":100})");
  EXPECT_EQ(never.status, 413);
  EXPECT_EQ(never.json().at("error").at("code"), "memory_exhausted");
  EXPECT_THAT(get("/metrics").body, HasSubstr("kun:memory_refused_total 2\n"));
  first.close();
  EXPECT_TRUE(eventually([&] { return memory_->held(MemoryUse::kRequests) == 0; }));
}

TEST_F(MemoryTest, BodiesThatThereIsNoMemoryForAreRefusedBeforeTheyAreSent) {
  start();
  const auto announce = [](TestClient& client, std::size_t bytes) {
    client.send(
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        "Content-Length: " +
        std::to_string(bytes) + "\r\n\r\n");
  };
  TestClient large(server_->port());
  announce(large, 3'000'000);
  EXPECT_EQ(large.read_response().status, 413);
  TestClient half(server_->port());
  announce(half, 2'000'000);
  half.send(std::string(1'900'000, ' '));
  ASSERT_TRUE(eventually([&] { return memory_->held(MemoryUse::kBodies) > 1'800'000; }));
  TestClient other(server_->port());
  announce(other, 1'500'000);
  EXPECT_EQ(other.read_response().status, 503);
  half.close();
  EXPECT_TRUE(eventually([&] { return memory_->held(MemoryUse::kBodies) == 0; }));
}

TEST_F(MemoryTest, StoredResponsesMakeRoomForNewerOnes) {
  Script script;
  script.text = std::string(6000, 'x');
  script.tokens_per_step = 500;
  generator_.play(script);
  start();
  std::string first;
  std::string last;
  for (int i = 0; i < 50; ++i) {
    const auto response = post("/v1/responses", R"({"input":"x","max_output_tokens":6100})");
    ASSERT_EQ(response.status, 200);
    last = response.json().at("id").as_string();
    if (first.empty()) first = last;
    ASSERT_LE(memory_->held(MemoryUse::kResponses), (4U << 20U) / 8);
  }
  EXPECT_EQ(get("/v1/responses/" + first).status, 404);
  EXPECT_EQ(get("/v1/responses/" + last).status, 200);
}

}  // namespace
}  // namespace kun
