// One HTTP/1.x request, parsed as its bytes arrive. Shapes that front ends and back ends are known
// to read differently (request smuggling) are refused rather than repaired: both Content-Length and
// Transfer-Encoding, either of them twice, any transfer coding but chunked, a missing or double
// Host.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "server/http_message.h"

namespace kun {

class HttpParser {
 public:
  struct Limits {
    std::size_t header_bytes_max = 32U << 10U;
    std::size_t body_bytes_max = 16U << 20U;
  };

  enum class State {
    kHeader,  // more header bytes are needed
    kBody,    // the head is complete, more body bytes are needed
    kDone,
    kFailed,  // see failure_status()
  };

  explicit HttpParser(const Limits& limits);
  ~HttpParser();

  // Takes bytes and returns how many it used; the rest is to be offered again, with more behind
  // it. Stops once at the end of the head. Requires: state() is kHeader or kBody.
  std::size_t feed(std::string_view bytes);

  State state() const { return state_; }
  bool expects_continue() const { return expects_continue_; }

  // Bytes of body still to come as announced; 0 when chunked.
  std::size_t announced_body_bytes() const { return announced_body_bytes_; }
  bool chunked() const { return chunked_; }

  HttpRequest& request() { return request_; }

  // After kFailed: what to answer before closing the connection.
  int failure_status() const { return failure_status_; }
  const std::string& failure_message() const { return failure_message_; }

 private:
  class Sink;

  void finish_head();
  void fail(int status, std::string message);

  Limits limits_;
  State state_ = State::kHeader;
  HttpRequest request_;
  bool expects_continue_ = false;
  bool chunked_ = false;
  std::size_t announced_body_bytes_ = 0;
  int failure_status_ = 0;
  std::string failure_message_;
  std::unique_ptr<Sink> sink_;
};

}  // namespace kun
