// The verdicts of llhttp over the first request of each of its test blocks. What it refuses is
// refused here; where this parser is stricter the reason is written down.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "server/http_parser.h"

namespace kun {
namespace {

struct Block {
  std::string title;
  std::string input;
  bool refused = false;  // by llhttp, before the first request was complete
};

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// As llhttp's own runner reads a block: lines end in CRLF unless escaped, and escapes are bytes.
std::string unescape(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  text = replace_all(std::move(text), "\\\n", "");
  text = replace_all(std::move(text), "\n", "\r\n");
  text = replace_all(std::move(text), "\\r", "\r");
  text = replace_all(std::move(text), "\\n", "\n");
  text = replace_all(std::move(text), "\\t", "\t");
  text = replace_all(std::move(text), "\\f", "\f");
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "\\x") == 0 && i + 3 < text.size()) {
      bytes += static_cast<char>(std::stoi(text.substr(i + 2, 2), nullptr, 16));
      i += 3;
    } else {
      bytes += text[i];
    }
  }
  return bytes;
}

std::vector<Block> read_blocks(const std::string& name) {
  std::ifstream file(std::string(KUN_TEST_DATA) + "/http-parser/" + name);
  EXPECT_TRUE(file) << name;
  std::vector<Block> blocks;
  std::string title;
  std::string fence;
  std::string text;
  bool strict = false;
  for (std::string line; std::getline(file, line);) {
    if (fence.empty() && line.starts_with("#")) title = name + ": " + line;
    if (fence.empty() && line.starts_with("<!-- meta")) {
      strict = line.find("\"type\": \"request\"") != std::string::npos;
    }
    if (!line.starts_with("```")) {
      if (!fence.empty()) text += line + "\n";
      continue;
    }
    if (fence.empty()) {
      fence = line.substr(3);
      text.clear();
      continue;
    }
    if (fence == "http" && strict) blocks.push_back({title, unescape(text)});
    if (fence == "log" && strict && !blocks.empty()) {
      const std::size_t error = text.find("error code=");
      blocks.back().refused = error < text.find("message complete");
    }
    fence.clear();
  }
  return blocks;
}

// Blocks are written without Host, which HTTP/1.1 wants and this parser insists on.
std::string with_host(std::string input) {
  static const std::regex kHost("\r\nhost *:", std::regex::icase);
  const std::size_t line_end = input.find("\r\n");
  if (line_end == std::string::npos || std::regex_search(input, kHost)) return input;
  return input.insert(line_end + 2, "Host: a\r\n");
}

// How the first request of `input` ends: kDone, kFailed, or with more to come.
HttpParser::State end_of(const std::string& input) {
  HttpParser parser(HttpParser::Limits{});
  std::string_view rest = input;
  while (parser.state() == HttpParser::State::kHeader ||
         parser.state() == HttpParser::State::kBody) {
    const std::size_t used = parser.feed(rest);
    rest.remove_prefix(used);
    if (used == 0) break;  // more is needed, and there is no more
  }
  return parser.state();
}

// Where this parser is stricter than llhttp, and why.
const std::map<std::string, std::string>& stricter() {
  static const std::map<std::string, std::string> kReasons = {
      {"sample.md: ## Prefix newline", "nothing may stand before a request"},
      {"sample.md: ## Request starting with CRLF", "nothing may stand before a request"},
      {"sample.md: ## No HTTP version", "HTTP/0.9 is not spoken"},
      {"method.md: ### SOURCE request with ICE", "only HTTP is spoken"},
      {"method.md: ### OPTIONS request with RTSP", "only HTTP is spoken"},
      {"method.md: ### ANNOUNCE request with RTSP", "only HTTP is spoken"},
      {"transfer-encoding.md: ## POST with `chunked` as last transfer-encoding",
       "no coding but chunked is known"},
      {"transfer-encoding.md: ## POST with `chunked` as last transfer-encoding (multiple headers)",
       "no coding but chunked is known, and one header of it is enough"},
  };
  return kReasons;
}

// Where it is looser, and why that does no harm.
const std::map<std::string, std::string>& looser() {
  static const std::map<std::string, std::string> kReasons = {
      {"uri.md: ## Disallow UTF-8 in URI path in strict mode",
       "no route has such a path, so that it is 404"},
      {"method.md: ### PRI request HTTP2", "no route has that method, so that it is 405 or 404"},
      {"invalid.md: ### Invalid method", "no route has that method, so that it is 405 or 404"},
      {"invalid.md: ### HTTP protocol and ANNOUNCE method",
       "no route has that method, so that it is 405 or 404"},
      {"invalid.md: ### Spaces before headers",
       "a folded line is part of the value before it, as RFC 9112 5.2 lets a server read it"},
      {"transfer-encoding.md: ### Unbalanced chunk extensions quoting",
       "extensions of chunks are not looked at; where they end is not in doubt"},
  };
  return kReasons;
}

const std::set<std::string>& files() {
  static const std::set<std::string> kFiles = {"finish.md",
                                               "sample.md",
                                               "content-length.md",
                                               "method.md",
                                               "transfer-encoding.md",
                                               "invalid.md",
                                               "connection.md",
                                               "uri.md",
                                               "pipelining.md"};
  return kFiles;
}

// Files of llhttp's tests of requests that say nothing about a parser that is strict.
const std::map<std::string, std::string>& not_read() {
  static const std::map<std::string, std::string> kReasons = {
      {"lenient-headers.md", "what llhttp accepts when it is told to be lenient"},
      {"lenient-header-value-relaxed.md", "what llhttp accepts when it is told to be lenient"},
      {"lenient-version.md", "what llhttp accepts when it is told to be lenient"},
      {"pausing.md", "how llhttp stops between its callbacks"},
  };
  return kReasons;
}

TEST(HttpVerdicts, ComeFromEveryFileOrAReasonSaysWhyNot) {
  const std::filesystem::path folder =
      std::filesystem::path(KUN_SHARED_DATA) / "http-parser/llhttp/test/request";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is not here";
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    EXPECT_NE(files().contains(name), not_read().contains(name)) << name;
    ++count;
  }
  EXPECT_EQ(count, files().size() + not_read().size());
}

TEST(HttpVerdicts, NothingThatLlhttpRefusesIsAccepted) {
  int refused = 0;
  int accepted = 0;
  for (const std::string& name : files()) {
    for (const Block& block : read_blocks(name)) {
      const HttpParser::State ours = end_of(with_host(block.input));
      ++(block.refused ? refused : accepted);
      if (block.refused && ours == HttpParser::State::kDone) {
        EXPECT_TRUE(looser().contains(block.title)) << block.title << "\n" << block.input;
      } else if (!block.refused && ours == HttpParser::State::kFailed) {
        EXPECT_TRUE(stricter().contains(block.title)) << block.title << "\n" << block.input;
      }
    }
  }
  EXPECT_GT(refused, 30);
  EXPECT_GT(accepted, 50);
}

}  // namespace
}  // namespace kun
