// The wire: what a connection survives and what ends it.
#include <sys/un.h>

#include <chrono>
#include <thread>

#include "server/server_fixture.h"

namespace kun {
namespace {

using WireTest = ServerFixture;

constexpr std::string_view kBody = R"({"prompt":"x"})";

TEST_F(WireTest, KeepsTheConnection) {
  start();
  TestClient client(server_->port());
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(client.request("POST", "/v1/completions", kBody).status, 200);
    EXPECT_EQ(client.request("GET", "/v1/models").status, 200);
    EXPECT_EQ(client.request("POST", "/v1/completions", R"({"prompt":"x","stream":true})").status,
              200);
    EXPECT_EQ(client.request("GET", "/nowhere").status, 404);
  }
}

TEST_F(WireTest, AnswersAPipelineInOrder) {
  start();
  TestClient client(server_->port());
  client.send_request("POST", "/v1/completions", kBody, "X-Request-Id: 1\r\n");
  client.send_request("GET", "/v1/models", {}, "X-Request-Id: 2\r\n");
  client.send_request("POST", "/v1/completions", R"({"prompt":"x","stream":true})",
                      "X-Request-Id: 3\r\n");
  client.send_request("GET", "/version", {}, "X-Request-Id: 4\r\n");
  for (const char* id : {"1", "2", "3", "4"}) {
    const ClientResponse response = client.read_response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.header("x-request-id"), id);
  }
}

TEST_F(WireTest, TakesChunkedBodiesInAnyPortions) {
  start();
  TestClient client(server_->port());
  const std::string request =
      "\r\nPOST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;name=value\r\n{\"pro\r\n9\r\nmpt\":\"x\"}\r\n0\r\nX-Trailer: 5\r\n\r\n";
  for (const char byte : request) {
    ASSERT_TRUE(client.send({&byte, 1}));
    // Often enough the server has read one byte before the next is there.
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  EXPECT_EQ(client.read_response().status, 200);
  EXPECT_EQ(client.request("GET", "/version").status, 200);
}

TEST_F(WireTest, SaysContinueToWhoExpectsIt) {
  start();
  TestClient client(server_->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 100);
  client.send(kBody);
  EXPECT_EQ(client.read_response().status, 200);
}

TEST_F(WireTest, RefusesWithoutReadingTheBody) {
  options_.api_keys = {"secret"};
  start();
  TestClient client(server_->port());
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 14\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_response().status, 401);
  EXPECT_TRUE(client.sees_close());
}

TEST_F(WireTest, RefusesShapesThatSmuggleRequests) {
  start();
  const std::string post = "POST /v1/completions HTTP/1.1\r\n";
  for (const std::string& request : std::vector<std::string>{
           post + "Host: a\r\nContent-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           post + "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n0\r\n\r\n",
           post + "Host: a\r\nContent-Length: 14\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
           post + "Host: a\r\nContent-Length: 14\r\nContent-Length: 15\r\n\r\n{\"prompt\":\"x\"}",
           post + "Host: a\r\nContent-Length: 14, 14\r\n\r\n{\"prompt\":\"x\"}",
           post + "Host: a\r\nContent-Length: -1\r\n\r\n",
           post + "Host: a\r\nContent-Length: 0x0e\r\n\r\n{\"prompt\":\"x\"}",
           post + "Host: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
           post + "Host: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
           post + "Host: a\r\nTransfer-Encoding: identity\r\n\r\n",
           post + "Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
           post + "Host: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
           post + "Host: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
           post + "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 5\r\n\r\n",
           post + "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
           post + "Host: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
           post + "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
           "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "GET /version HTTP/1.1\r\n\r\n",
           "GET /version HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
           "GET /version\r\n\r\n",
           "GET  /version HTTP/1.1\r\nHost: a\r\n\r\n",
           "GET /version HTTP/1.1\nHost: a\n\n",
           "nonsense\r\n\r\n",
           "\x16\x03\x01\x02\r\n\r\n"}) {
    TestClient client(server_->port());
    client.send(request);
    const ClientResponse response = client.read_response();
    EXPECT_EQ(response.status, 400) << request;
    EXPECT_EQ(response.header("connection"), "close");
    EXPECT_TRUE(client.sees_close()) << request;
  }
  EXPECT_EQ(get("/version").status, 200);
}

TEST_F(WireTest, KnowsItsProtocolVersions) {
  start();
  TestClient future(server_->port());
  future.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  EXPECT_EQ(future.read_response().status, 505);
  TestClient past(server_->port());
  past.send("GET /version HTTP/1.0\r\n\r\n");
  EXPECT_EQ(past.read_response().status, 200);
  EXPECT_TRUE(past.sees_close());
  TestClient streamed(server_->port());
  streamed.send(
      "POST /v1/completions HTTP/1.0\r\nContent-Length: 28\r\n\r\n"
      R"({"prompt":"x","stream":true})");
  const ClientResponse response = streamed.read_response();
  EXPECT_EQ(response.header("transfer-encoding"), "");
  EXPECT_TRUE(response.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(WireTest, BoundsHeadersAndBodies) {
  options_.limits.header_bytes_max = 4096;
  options_.limits.body_bytes_max = 10'000;
  start();
  EXPECT_EQ(get("/version", "X: " + std::string(5000, 'x') + "\r\n").status, 431);
  TestClient endless(server_->port());
  endless.send("GET /" + std::string(10'000, 'a'));
  EXPECT_EQ(endless.read_response().status, 431);
  EXPECT_EQ(post("/v1/completions", std::string(10'001, ' ')).status, 413);
  TestClient chunked(server_->port());
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "3e8\r\n" + std::string(1000, ' ') + "\r\n";
  for (int i = 0; i < 11; ++i) chunked.send(chunk);
  EXPECT_EQ(chunked.read_response().status, 413);
  TestClient extension(server_->port());
  extension.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
                 ("1;" + std::string(9000, 'x')));
  EXPECT_EQ(extension.read_response().status, 431);
}

TEST_F(WireTest, BoundsTheBytesOfAllBodiesTogether) {
  options_.limits.bodies_bytes_max = 50'000;
  start();
  TestClient first(server_->port());
  TestClient second(server_->port());
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n";
  first.send(head + std::string(40'000, ' '));
  second.send(head + std::string(40'000, ' '));
  // One of the two is over the line.
  EXPECT_TRUE(eventually([&] { return get("/version").status == 200; }));
  first.send(std::string(20'000, ' '));
  EXPECT_EQ(first.read_response().status, 503);
}

TEST_F(WireTest, EndsConnectionsThatTakeTooLong) {
  options_.limits.header_timeout = std::chrono::milliseconds(150);
  options_.limits.body_timeout = std::chrono::milliseconds(150);
  options_.limits.idle_timeout = std::chrono::milliseconds(150);
  start();
  TestClient header(server_->port());
  header.send("GET /version HTTP/1.1\r\nHo");
  TestClient body(server_->port());
  body.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{");
  TestClient silent(server_->port());
  TestClient idle(server_->port());
  EXPECT_EQ(idle.request("GET", "/version").status, 200);
  EXPECT_EQ(header.read_response().status, 408);
  EXPECT_EQ(body.read_response().status, 408);
  EXPECT_TRUE(silent.sees_close(2000));
  EXPECT_TRUE(idle.sees_close(2000));
}

TEST_F(WireTest, ADripOfBytesDoesNotExtendTheDeadline) {
  options_.limits.header_timeout = std::chrono::milliseconds(200);
  start();
  TestClient client(server_->port());
  client.send("GET /version HTTP/1.1\r\nX: ");
  for (int i = 0; i < 20 && client.send("x"); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
  EXPECT_EQ(client.read_response().status, 408);
}

TEST_F(WireTest, LimitsConnections) {
  options_.limits.connections_max = 2;
  start();
  TestClient first(server_->port());
  TestClient second(server_->port());
  EXPECT_EQ(first.request("GET", "/version").status, 200);
  EXPECT_EQ(second.request("GET", "/version").status, 200);
  TestClient third(server_->port());
  const ClientResponse refused = third.read_response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_FALSE(refused.header("retry-after").empty());
  first.close();
  EXPECT_TRUE(eventually([&] { return get("/version").status == 200; }));
}

TEST_F(WireTest, HeadHasTheHeadersOfGet) {
  start();
  TestClient client(server_->port());
  const ClientResponse head = client.request("HEAD", "/v1/models");
  EXPECT_EQ(head.status, 200);
  EXPECT_FALSE(head.header("content-length").empty());
  EXPECT_EQ(client.request("GET", "/v1/models").status, 200);
}

TEST_F(WireTest, ListensOnAUnixSocket) {
  options_.uds = ::testing::TempDir() + "kun_test_" + std::to_string(::getpid()) + ".sock";
  start();
  const int fd = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  options_.uds.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  TestClient client(fd, nullptr);
  EXPECT_EQ(client.request("POST", "/v1/completions", kBody).status, 200);
  ServerOptions same = options_;
  EXPECT_FALSE(Server::start(same)) << "the socket is in use";
  server_->stop();
  EXPECT_NE(::access(options_.uds.c_str(), F_OK), 0);
}

TEST_F(WireTest, SaysWhyItCannotListen) {
  start();
  ServerOptions same = options_;
  same.port = server_->port();
  const auto second = Server::start(same);
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().message().find(std::to_string(same.port)), std::string::npos);
  same.port = 0;
  same.tls.certificate_file = "/nonexistent.pem";
  const auto third = Server::start(same);
  ASSERT_FALSE(third);
  EXPECT_NE(third.error().message().find("/nonexistent.pem"), std::string::npos);
}

}  // namespace
}  // namespace kun
