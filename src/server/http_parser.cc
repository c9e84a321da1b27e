// The grammar is Boost.Beast's basic_parser; this file adds the policy.
#include "server/http_parser.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <utility>

namespace kun {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;

std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lowered;
}

// Splits an origin-form ("/path?query") or absolute-form ("http://host/path") target.
void split_target(std::string_view target, HttpRequest& request) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const std::size_t slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  const std::size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string_view::npos) request.query = target.substr(question + 1);
}

// A bare line feed shows up as a bad version, too.
bool first_line_ends_well(std::string_view bytes) {
  const std::size_t end = bytes.find('\n');
  return end != std::string_view::npos && end > 0 && bytes[end - 1] == '\r';
}

}  // namespace

class HttpParser::Sink : public http::basic_parser<true> {
 public:
  explicit Sink(HttpParser& owner) : owner_(owner) {}

 private:
  using string_view = beast::string_view;

  void on_request_impl(http::verb, string_view method, string_view target, int version,
                       beast::error_code&) override {
    owner_.request_.method.assign(method.data(), method.size());
    owner_.request_.minor_version = version % 10;
    split_target({target.data(), target.size()}, owner_.request_);
  }

  void on_response_impl(int, string_view, int, beast::error_code&) override {}

  void on_field_impl(http::field, string_view name, string_view value,
                     beast::error_code&) override {
    if (head_complete_) return;  // a trailer must not be able to change what the head said
    owner_.request_.headers.push_back(
        {lower({name.data(), name.size()}), std::string(value.data(), value.size())});
  }

  void on_header_impl(beast::error_code&) override { head_complete_ = true; }

  void on_body_init_impl(const boost::optional<std::uint64_t>&, beast::error_code&) override {}

  std::size_t on_body_impl(string_view body, beast::error_code&) override {
    owner_.request_.body.append(body.data(), body.size());
    return body.size();
  }

  void on_chunk_header_impl(std::uint64_t, string_view, beast::error_code&) override {}

  std::size_t on_chunk_body_impl(std::uint64_t, string_view body, beast::error_code&) override {
    return on_body_impl(body, unused_);
  }

  void on_finish_impl(beast::error_code&) override {}

  HttpParser& owner_;
  bool head_complete_ = false;
  beast::error_code unused_;
};

HttpParser::HttpParser(const Limits& limits)
    : limits_(limits), sink_(std::make_unique<Sink>(*this)) {
  // Beast stores 32 bits; the body limit is checked by announced length and by chunk.
  sink_->header_limit(static_cast<std::uint32_t>(limits.header_bytes_max));
  sink_->body_limit(limits.body_bytes_max);
  sink_->eager(true);
}

HttpParser::~HttpParser() = default;

std::size_t HttpParser::feed(std::string_view bytes) {
  std::size_t used = 0;
  while (used < bytes.size() && (state_ == State::kHeader || state_ == State::kBody)) {
    const bool had_head = sink_->is_header_done();
    sink_->eager(had_head);  // stop once behind the head, so that it can be judged
    beast::error_code error;
    const std::size_t count =
        sink_->put(boost::asio::const_buffer(bytes.data() + used, bytes.size() - used), error);
    used += count;
    if (error == http::error::need_more) {
      // Chunk headers and trailers have no bound of their own.
      if (bytes.size() - used > limits_.header_bytes_max) {
        fail(431, "a chunk header or trailer is too long");
      }
      break;
    }
    if (error == http::error::header_limit) {
      fail(431, "the request header is larger than this server accepts");
    } else if (error == http::error::body_limit) {
      fail(413, "the request body is larger than this server accepts");
    } else if (error == http::error::bad_version && first_line_ends_well(bytes)) {
      fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    } else if (error) {
      fail(400, "malformed HTTP request: " + error.message());
    }
    if (state_ == State::kFailed) break;
    if (!had_head && sink_->is_header_done()) {
      finish_head();
      if (state_ != State::kFailed && sink_->is_done()) state_ = State::kDone;
      break;
    }
    if (sink_->is_done()) state_ = State::kDone;
  }
  return used;
}

void HttpParser::finish_head() {
  state_ = State::kBody;
  const auto count = [&](std::string_view name) {
    return std::count_if(request_.headers.begin(), request_.headers.end(),
                         [&](const HttpHeader& header) { return header.name == name; });
  };
  const auto lengths = count("content-length");
  const auto codings = count("transfer-encoding");
  const auto hosts = count("host");
  if (lengths > 1) return fail(400, "Content-Length appears more than once");
  if (codings > 1) return fail(400, "Transfer-Encoding appears more than once");
  if (lengths > 0 && codings > 0) {
    return fail(400, "Content-Length and Transfer-Encoding exclude each other");
  }
  if (codings > 0 && lower(request_.header("transfer-encoding")) != "chunked") {
    return fail(400, "the only transfer coding understood is chunked");
  }
  if (codings > 0 && request_.minor_version == 0) {
    return fail(400, "HTTP/1.0 has no Transfer-Encoding");
  }
  const std::string_view length = request_.header("content-length");
  if (lengths > 0 && length.find_first_not_of("0123456789") != std::string_view::npos) {
    return fail(400, "Content-Length is not a number");
  }
  if (hosts > 1) return fail(400, "Host appears more than once");
  if (hosts == 0 && request_.minor_version == 1) return fail(400, "the Host header is missing");
  const std::string expectation = lower(request_.header("expect"));
  if (!expectation.empty() && expectation != "100-continue") {
    return fail(417, "the only expectation understood is 100-continue");
  }
  expects_continue_ = !expectation.empty() && request_.minor_version == 1;
  chunked_ = codings > 0;
  if (lengths > 0) {
    // Beast has checked it against the body limit already.
    announced_body_bytes_ = static_cast<std::size_t>(sink_->content_length().value_or(0));
  }
  request_.keep_alive = sink_->keep_alive();
}

void HttpParser::fail(int status, std::string message) {
  state_ = State::kFailed;
  failure_status_ = status;
  failure_message_ = std::move(message);
}

}  // namespace kun
