#include "server/http_parser.h"

#include <gtest/gtest.h>

#include "server/http_wire.h"

namespace kun {
namespace {

TEST(HttpParser, ReadsTheSameFromAnyPortions) {
  const std::string text =
      "POST http://host/a%20b?c=d HTTP/1.1\r\nHost: host\r\nX-Name:  value \r\n"
      "Content-Length: 3\r\n\r\nxyzGET";
  for (std::size_t portion = 1; portion <= text.size(); ++portion) {
    HttpParser parser(HttpParser::Limits{});
    std::string pending;
    std::size_t at = 0;
    while (parser.state() != HttpParser::State::kDone && at < text.size()) {
      const std::size_t count = std::min(portion, text.size() - at);
      pending += text.substr(at, count);
      at += count;
      for (std::size_t used = 1; used > 0 && parser.state() != HttpParser::State::kDone;) {
        used = parser.feed(pending);
        pending.erase(0, used);
        ASSERT_NE(parser.state(), HttpParser::State::kFailed) << parser.failure_message();
      }
    }
    ASSERT_EQ(parser.state(), HttpParser::State::kDone) << portion;
    EXPECT_EQ(parser.request().method, "POST");
    EXPECT_EQ(parser.request().path, "/a%20b");
    EXPECT_EQ(parser.request().query, "c=d");
    EXPECT_EQ(parser.request().header("x-name"), "value");
    EXPECT_EQ(parser.request().body, "xyz");
    EXPECT_EQ(pending + text.substr(at), "GET") << "belongs to the next request";
  }
}

TEST(HttpParser, StopsAtTheEndOfTheHead) {
  HttpParser parser(HttpParser::Limits{});
  const std::string text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nxyz";
  EXPECT_EQ(parser.feed(text), text.size() - 3);
  EXPECT_EQ(parser.state(), HttpParser::State::kBody);
  EXPECT_EQ(parser.announced_body_bytes(), 3U);
  EXPECT_TRUE(parser.request().body.empty());
}

TEST(HttpMessage, DecodesPercentEscapesOnce) {
  EXPECT_EQ(percent_decode("a%2Fb%252F%zz%4"), "a/b%2F%zz%4");
}

TEST(HttpWire, NoHeaderValueCanStartAnotherHeader) {
  HttpResponse response;
  response.headers.push_back({"X-Request-Id", "a\r\nSet-Cookie: b"});
  const std::string head = format_head(response, 0, HttpWireOptions{});
  EXPECT_NE(head.find("X-Request-Id: a\r\n"), std::string::npos);
  EXPECT_EQ(head.find("Set-Cookie"), std::string::npos);
}

}  // namespace
}  // namespace kun
