// Clients that leave, clients that do not read, too many clients, and the end of the server.
#include "server/server_fixture.h"

namespace kun {
namespace {

using LifeTest = ServerFixture;

Script endless() {
  Script script;
  script.text = "all work and no play ";
  script.endless = true;
  return script;
}

constexpr std::string_view kStream =
    R"({"prompt":"x","stream":true,"max_tokens":4000,"ignore_eos":true})";
constexpr std::string_view kWhole = R"({"prompt":"x","max_tokens":4000,"ignore_eos":true})";

TEST_F(LifeTest, AClientThatLeavesCancelsItsGeneration) {
  generator_.play(endless());
  start();
  for (const std::string_view body : {kStream, kWhole}) {
    const int before = generator_.dropped_count();
    TestClient client(server_->port());
    client.send_request("POST", "/v1/completions", body);
    ASSERT_TRUE(eventually([&] { return generator_.running_count() == 1; }));
    client.close();
    EXPECT_TRUE(eventually([&] { return generator_.dropped_count() == before + 1; }, 500));
    EXPECT_EQ(generator_.running_count(), 0);
  }
  EXPECT_NE(get("/metrics").body.find("finished_reason=\"abort\",model_name=\"tiny\"} 2\n"),
            std::string::npos);
}

TEST_F(LifeTest, ASlowReaderHoldsUpNobodyAndIsCutOff) {
  options_.limits.write_timeout = std::chrono::milliseconds(700);
  options_.limits.pending_bytes_max = 4096;
  context_length_ = 1 << 20;
  Script script = endless();
  script.tokens_per_step = 16;
  script.step = std::chrono::milliseconds(1);
  generator_.play([&](const GenerateRequest& request) {
    return request.output_count_max > 100'000 ? script : Script();
  });
  start();
  TestClient slow(server_->port(), 2048);
  slow.send_request("POST", "/v1/completions",
                    R"({"prompt":"x","stream":true,"max_tokens":1000000,"logprobs":5})");
  ASSERT_TRUE(eventually([&] { return generator_.running_count() == 1; }));
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(post("/v1/completions", R"({"prompt":"x"})").status, 200);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
  }
  EXPECT_TRUE(eventually([&] { return generator_.running_count() == 0; }, 10'000));
  EXPECT_GE(generator_.dropped_count(), 1);
}

TEST_F(LifeTest, ASlowReaderGetsEverythingInTheEnd) {
  options_.limits.pending_bytes_max = 2048;
  Script script = endless();
  script.tokens_per_step = 16;
  generator_.play(script);
  start();
  TestClient client(server_->port(), 2048);
  client.send_request("POST", "/v1/completions", kStream);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const ClientResponse response = client.read_response();
  EXPECT_TRUE(response.complete);
  std::size_t length = 0;
  for (const std::string& event : sse_data(response.body)) {
    if (event == "[DONE]") break;
    length += boost::json::parse(event).at("choices").at(0).at("text").as_string().size();
  }
  EXPECT_EQ(length, 4000U);
}

TEST_F(LifeTest, SilentStreamsShowThatTheyAreAlive) {
  options_.limits.keepalive_interval = std::chrono::milliseconds(50);
  Script script;
  script.step = std::chrono::milliseconds(180);
  script.text = "a";
  generator_.play([&](const GenerateRequest&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return script;
  });
  start();
  const ClientResponse response =
      post("/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":3})");
  EXPECT_NE(response.body.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(LifeTest, MoreRequestsThanTheLineHoldsAre429) {
  options_.text_thread_count = 1;
  options_.limits.text_queue_max = 1;
  std::atomic<bool> blocked = true;
  std::atomic<int> entered = 0;
  generator_.play([&](const GenerateRequest&) {
    ++entered;
    while (blocked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return Script();
  });
  start();
  TestClient working(server_->port());
  working.send_request("POST", "/v1/completions", R"({"prompt":"x"})");
  ASSERT_TRUE(eventually([&] { return entered == 1; }));
  TestClient waiting(server_->port());
  waiting.send_request("POST", "/v1/completions", R"({"prompt":"x"})");
  TestClient refused(server_->port());
  ClientResponse response;
  // The second may not have reached the line yet; whoever comes after it is refused.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  response = refused.request("POST", "/v1/completions", R"({"prompt":"x"})");
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(response.header("retry-after"), "1");
  blocked = false;
  EXPECT_EQ(working.read_response().status, 200);
  EXPECT_EQ(waiting.read_response().status, 200);
}

TEST_F(LifeTest, DrainingFinishesWhatRunsAndTakesNothingNew) {
  Script script;
  script.text = std::string(300, 'y');
  script.step = std::chrono::milliseconds(1);
  generator_.play(script);
  start();
  TestClient running(server_->port());
  running.send_request("POST", "/v1/completions",
                       R"({"prompt":"x","stream":true,"max_tokens":400})");
  TestClient idle(server_->port());
  EXPECT_EQ(idle.request("GET", "/version").status, 200);
  TestClient half(server_->port());
  half.send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(half.read_response().status, 100);
  ASSERT_TRUE(eventually([&] { return generator_.running_count() == 1; }));
  bool drained = false;
  std::thread drainer([&] { drained = server_->drain(std::chrono::seconds(10)); });
  EXPECT_TRUE(idle.sees_close(2000));
  half.send(R"({"prompt":"x"})");
  const ClientResponse refused = half.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("connection"), "close");
  const ClientResponse response = running.read_response();
  EXPECT_TRUE(response.complete);
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
  drainer.join();
  EXPECT_TRUE(drained);
  TestClient late(server_->port());
  EXPECT_FALSE(late.connected());
}

TEST_F(LifeTest, StoppingCutsOffWhatRuns) {
  generator_.play(endless());
  start();
  TestClient client(server_->port());
  client.send_request("POST", "/v1/completions", kWhole);
  ASSERT_TRUE(eventually([&] { return generator_.running_count() == 1; }));
  EXPECT_FALSE(server_->drain(std::chrono::milliseconds(50)));
  server_->stop();
  EXPECT_TRUE(client.sees_close());
  EXPECT_TRUE(eventually([&] { return generator_.running_count() == 0; }));
}

TEST_F(LifeTest, ManyClientsAtOnceAllGetTheirOwnAnswer) {
  options_.io_thread_count = 2;
  generator_.play([](const GenerateRequest& request) {
    Script script;
    script.text.clear();
    for (const Token token : request.prompt) script.text += static_cast<char>(token);
    return script;
  });
  start();
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      TestClient client(server_->port());
      for (int i = 0; i < 10; ++i) {
        const std::string word = "w" + std::to_string(t) + "-" + std::to_string(i);
        const bool stream = i % 2 == 0;
        const ClientResponse response = client.request(
            "POST", "/v1/completions",
            R"({"prompt":")" + word + R"(","stream":)" + (stream ? "true}" : "false}"));
        std::string text;
        if (stream) {
          for (const std::string& event : sse_data(response.body)) {
            if (event == "[DONE]") break;
            text += boost::json::parse(event).at("choices").at(0).at("text").as_string();
          }
        } else {
          text = response.json().at("choices").at(0).at("text").as_string();
        }
        if (text == word) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 160);
}

}  // namespace
}  // namespace kun
