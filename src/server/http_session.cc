// A session is one coroutine on a strand. There is always at most one read in flight, and it is
// never cancelled: what it brings is kept for whoever needs bytes next. Everything that may wake
// the coroutine (bytes, output, a deadline) cancels or expires `signal_`, and it looks again.
#include "server/http_session.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <utility>

#include "base/log.h"
#include "server/http_parser.h"
#include "server/http_wire.h"

namespace kun {
namespace {

namespace asio = boost::asio;
using asio::as_tuple;
using asio::use_awaitable;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;
using Socket = asio::generic::stream_protocol::socket;

constexpr std::size_t kReadBytes = 8U << 10U;
constexpr std::size_t kReadAheadMax = 64U << 10U;     // of pipelined requests
constexpr std::size_t kWriteBytes = 64U << 10U;       // what write_timeout is granted for
constexpr std::size_t kSmallBodyBytes = 64U << 10U;   // read even when the request is refused
constexpr std::size_t kConnectionBytes = 32U << 10U;  // what a connection takes without a body
constexpr std::size_t kLingerBytes = 8U << 20U;
constexpr std::chrono::seconds kLingerTime{2};

}  // namespace

class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(asio::io_context& io, asio::ssl::context* tls, int fd, int family,
              ConnectionSet& connections)
      : connections_(connections),
        limits_(connections.limits),
        socket_(asio::make_strand(io), asio::generic::stream_protocol(family, 0), fd),
        signal_(socket_.get_executor()),
        write_deadline_(socket_.get_executor()) {
    if (tls != nullptr) tls_.emplace(socket_, *tls);
    connections_.memory->adjust(MemoryUse::kConnections, 0, kConnectionBytes);
  }

  ~HttpSession() {
    if (exchange_) exchange_->close(true);
    hold_body_bytes(0);
    connections_.memory->release(MemoryUse::kConnections, kConnectionBytes);
    connections_.remove(this);
  }

  auto executor() { return socket_.get_executor(); }
  asio::awaitable<void> run();
  void poke();
  void close();

 private:
  asio::awaitable<bool> handshake();
  asio::awaitable<bool> read_request();
  asio::awaitable<bool> judge_head();
  asio::awaitable<bool> answer();
  asio::awaitable<bool> send_output(Exchange::Output output);
  asio::awaitable<void> refuse(HttpResponse response);
  asio::awaitable<bool> write_all(std::string bytes);
  asio::awaitable<void> wait_until(Clock::time_point deadline);
  asio::awaitable<void> finish();

  void start_read();
  void read_done(error_code error, std::size_t count);
  bool take_bytes();
  void hold_body_bytes(std::size_t count);
  std::optional<HttpResponse> refuse_body();
  void close_socket();
  HttpWireOptions wire_options() const;
  HttpResponse malformed(int status, const std::string& message) const;

  ConnectionSet& connections_;
  const ServerLimits& limits_;
  Socket socket_;
  std::optional<asio::ssl::stream<Socket&>> tls_;
  asio::steady_timer signal_;
  asio::steady_timer write_deadline_;
  std::array<char, kReadBytes> chunk_;
  std::string buffer_;  // received, not yet parsed
  bool reading_ = false;
  bool read_ended_ = false;  // end of file or an error: the client has gone
  bool first_request_ = true;
  bool keep_alive_ = true;
  bool linger_ = false;
  int status_ = 0;
  std::size_t held_body_bytes_ = 0;
  std::unique_ptr<HttpParser> parser_;
  std::optional<HttpResponse> refusal_;
  std::shared_ptr<Exchange> exchange_;
};

asio::awaitable<void> HttpSession::run() {
  const auto self = shared_from_this();
  if (tls_ && !co_await handshake()) co_return;
  while (keep_alive_) {
    if (!co_await read_request()) break;
    if (!co_await answer()) break;
    first_request_ = false;
    if (connections_.draining) break;
  }
  co_await finish();
}

asio::awaitable<bool> HttpSession::handshake() {
  write_deadline_.expires_after(limits_.header_timeout);
  const auto on_deadline = [self = shared_from_this()](error_code error) {
    if (!error) self->close_socket();
  };
  write_deadline_.async_wait(on_deadline);
  const auto [error] =
      co_await tls_->async_handshake(asio::ssl::stream_base::server, as_tuple(use_awaitable));
  write_deadline_.cancel();
  co_return !error;
}

// False when the connection is over.
asio::awaitable<bool> HttpSession::read_request() {
  parser_ = std::make_unique<HttpParser>(
      HttpParser::Limits{limits_.header_bytes_max, limits_.body_bytes_max});
  refusal_.reset();
  bool started = false;
  auto deadline = Clock::now() + (first_request_ ? limits_.header_timeout : limits_.idle_timeout);
  for (;;) {
    const bool had_head = parser_->state() != HttpParser::State::kHeader;
    const bool progressed = take_bytes();
    if (parser_->state() == HttpParser::State::kFailed) {
      co_await refuse(malformed(parser_->failure_status(), parser_->failure_message()));
      co_return false;
    }
    if (!had_head && parser_->state() != HttpParser::State::kHeader) {
      deadline = Clock::now() + limits_.body_timeout;
      if (!co_await judge_head()) co_return false;
    }
    if (parser_->state() == HttpParser::State::kDone) co_return true;
    if (parser_->state() == HttpParser::State::kBody &&
        (connections_.body_bytes > limits_.bodies_bytes_max || connections_.memory->over())) {
      co_await refuse(malformed(503, "too much is being uploaded right now"));
      co_return false;
    }
    if (progressed && !buffer_.empty()) continue;
    if (!started && !buffer_.empty()) {
      started = true;
      deadline = Clock::now() + limits_.header_timeout;
    }
    const bool begun = started || parser_->state() != HttpParser::State::kHeader;
    if (read_ended_ || (connections_.draining && !begun)) co_return false;
    start_read();
    co_await wait_until(deadline);
    if (Clock::now() < deadline) continue;
    if (begun) {
      co_await refuse(malformed(408, "the request did not arrive in time"));
    }
    co_return false;
  }
}

HttpResponse HttpSession::malformed(int status, const std::string& message) const {
  return connections_.handler.malformed(parser_->request(), status, message);
}

// Feeds the parser what is there. False when it could use none of it.
bool HttpSession::take_bytes() {
  const bool in_header = parser_->state() == HttpParser::State::kHeader;
  if (in_header && parser_->request().method.empty()) {
    // An empty line before a request is to be ignored (RFC 9112, 2.2).
    std::size_t blank = 0;
    while (buffer_.compare(blank, 2, "\r\n") == 0) blank += 2;
    buffer_.erase(0, blank);
    if (buffer_ == "\r") return false;  // perhaps the first half of such a line
  }
  if (buffer_.empty()) return false;
  const std::size_t used = parser_->feed(buffer_);
  buffer_.erase(0, used);
  hold_body_bytes(parser_->request().body.capacity());
  return used > 0;
}

// The head is complete. False when the connection is over.
asio::awaitable<bool> HttpSession::judge_head() {
  HttpRequest& request = parser_->request();
  request.received = Clock::now();
  connections_.handler.begin(request);
  refusal_ = connections_.handler.refuse(request);
  if (!refusal_) refusal_ = refuse_body();
  const bool body_missing = parser_->state() != HttpParser::State::kDone;
  if (refusal_ && body_missing &&
      (parser_->chunked() || parser_->expects_continue() ||
       parser_->announced_body_bytes() > kSmallBodyBytes)) {
    // Not worth reading what nobody will look at.
    connections_.handler.decorate(request, *refusal_);
    connections_.handler.answered(request, refusal_->status, true);
    co_await refuse(*std::exchange(refusal_, std::nullopt));
    co_return false;
  }
  if (parser_->expects_continue() && body_missing && buffer_.empty()) {
    co_return co_await write_all("HTTP/1.1 100 Continue\r\n\r\n");
  }
  co_return true;
}

// False when the connection is over.
asio::awaitable<bool> HttpSession::answer() {
  std::weak_ptr<HttpSession> weak = weak_from_this();
  auto wake = [weak] {
    if (const auto self = weak.lock()) self->poke();
  };
  keep_alive_ = parser_->request().keep_alive && !connections_.draining;
  exchange_ = std::make_shared<Exchange>(std::move(parser_->request()), std::move(wake));
  parser_.reset();
  start_read();
  if (refusal_) {
    exchange_->respond(*std::exchange(refusal_, std::nullopt));
  } else {
    connections_.handler.handle(exchange_);
  }
  bool complete = false;
  while (!exchange_->closed() && !complete) {
    Exchange::Output output = exchange_->take();
    if (output.empty()) {
      const auto deadline = Clock::now() + limits_.keepalive_interval;
      co_await wait_until(deadline);
      if (Clock::now() >= deadline) exchange_->notify_idle();
      continue;
    }
    const bool ended = output.ended;
    if (output.streaming) hold_body_bytes(0);  // it was read before the first event
    if (!co_await send_output(std::move(output))) break;
    complete = ended;
    if (!ended) exchange_->notify_drained();
  }
  connections_.handler.answered(exchange_->request(), status_, complete);
  exchange_->close(!complete);
  exchange_.reset();
  hold_body_bytes(0);
  co_return complete && !read_ended_;
}

asio::awaitable<bool> HttpSession::send_output(Exchange::Output output) {
  const HttpRequest& request = exchange_->request();
  HttpWireOptions wire = wire_options();
  wire.with_body = request.method != "HEAD";
  wire.chunked = output.streaming && request.minor_version > 0;
  // Without chunks only the end of the connection can end the body.
  if (output.streaming && !wire.chunked) keep_alive_ = wire.keep_alive = false;
  std::string bytes;
  if (output.head) {
    connections_.handler.decorate(request, *output.head);
    status_ = output.head->status;
    const std::optional<std::size_t> length =
        output.streaming ? std::nullopt : std::optional(output.bytes.size());
    bytes = format_head(*output.head, length, wire);
  }
  if (wire.with_body) append_body(bytes, output.bytes, output.ended, wire);
  co_return co_await write_all(std::move(bytes));
}

// Answers bytes that will not become an exchange; the connection ends behind it.
asio::awaitable<void> HttpSession::refuse(HttpResponse response) {
  keep_alive_ = false;
  linger_ = true;
  HttpWireOptions wire = wire_options();
  std::string bytes = format_head(response, response.body.size(), wire);
  bytes += response.body;
  co_await write_all(std::move(bytes));
}

HttpWireOptions HttpSession::wire_options() const {
  HttpWireOptions wire;
  wire.keep_alive = keep_alive_;
  if (exchange_) wire.minor_version = exchange_->request().minor_version;
  return wire;
}

asio::awaitable<bool> HttpSession::write_all(std::string bytes) {
  const auto on_deadline = [self = shared_from_this()](error_code error) {
    if (!error) self->close_socket();
  };
  for (std::size_t sent = 0; sent < bytes.size();) {
    const auto piece =
        asio::buffer(bytes.data() + sent, std::min(kWriteBytes, bytes.size() - sent));
    write_deadline_.expires_after(limits_.write_timeout);
    write_deadline_.async_wait(on_deadline);
    error_code error;
    std::size_t count = 0;
    if (tls_) {
      std::tie(error, count) = co_await asio::async_write(*tls_, piece, as_tuple(use_awaitable));
    } else {
      std::tie(error, count) = co_await asio::async_write(socket_, piece, as_tuple(use_awaitable));
    }
    write_deadline_.cancel();
    if (error) co_return false;
    sent += count;
  }
  co_return true;
}

asio::awaitable<void> HttpSession::wait_until(Clock::time_point deadline) {
  signal_.expires_at(deadline);
  co_await signal_.async_wait(as_tuple(use_awaitable));
}

// Ends the connection so that the last answer is not lost to a reset: says that nothing follows,
// and reads for a moment what the client is still sending.
asio::awaitable<void> HttpSession::finish() {
  const auto deadline = Clock::now() + kLingerTime;
  if (tls_ && !read_ended_) {
    write_deadline_.expires_after(kLingerTime);
    const auto on_deadline = [self = shared_from_this()](error_code error) {
      if (!error) self->close_socket();
    };
    write_deadline_.async_wait(on_deadline);
    co_await tls_->async_shutdown(as_tuple(use_awaitable));
    write_deadline_.cancel();
  }
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  std::size_t discarded = 0;
  while (linger_ && !tls_ && !read_ended_ && discarded < kLingerBytes && Clock::now() < deadline) {
    discarded += buffer_.size();
    buffer_.clear();
    start_read();
    co_await wait_until(deadline);
  }
  close_socket();
}

void HttpSession::start_read() {
  if (reading_ || read_ended_ || (exchange_ && buffer_.size() >= kReadAheadMax)) return;
  reading_ = true;
  auto on_read = [self = shared_from_this()](error_code error, std::size_t count) {
    self->read_done(error, count);
  };
  if (tls_) {
    tls_->async_read_some(asio::buffer(chunk_), std::move(on_read));
  } else {
    socket_.async_read_some(asio::buffer(chunk_), std::move(on_read));
  }
}

void HttpSession::read_done(error_code error, std::size_t count) {
  reading_ = false;
  buffer_.append(chunk_.data(), count);
  read_ended_ = static_cast<bool>(error);
  if (exchange_) {
    if (read_ended_) exchange_->close(true);
    start_read();
  }
  signal_.cancel();
}

// A body that there is no memory for is refused before it is sent. While it arrives it grows, and
// has its old and its new place at times.
std::optional<HttpResponse> HttpSession::refuse_body() {
  MemoryLedger& memory = *connections_.memory;
  const std::size_t bytes = 2 * parser_->announced_body_bytes();
  if (bytes <= kSmallBodyBytes) return std::nullopt;
  if (memory.never(bytes)) {
    return malformed(413,
                     "the request body is larger than this server's "
                     "memory for requests");
  }
  if (!memory.try_hold(MemoryUse::kBodies, bytes)) {
    return malformed(503,
                     "there is no memory for this request body right "
                     "now; try again later");
  }
  memory.release(MemoryUse::kBodies, bytes);
  return std::nullopt;
}

void HttpSession::hold_body_bytes(std::size_t count) {
  connections_.memory->adjust(MemoryUse::kBodies, held_body_bytes_, count);
  connections_.body_bytes += count - held_body_bytes_;  // unsigned arithmetic wraps as it should
  held_body_bytes_ = count;
}

void HttpSession::poke() {
  auto wake = [self = shared_from_this()] { self->signal_.cancel(); };
  asio::post(executor(), std::move(wake));
}

void HttpSession::close() {
  auto shut = [self = shared_from_this()] {
    self->close_socket();
    if (self->exchange_) self->exchange_->close(true);
    self->read_ended_ = true;
    self->signal_.cancel();
  };
  asio::post(executor(), std::move(shut));
}

void HttpSession::close_socket() {
  error_code ignored;
  socket_.close(ignored);
}

void ConnectionSet::add(HttpSession* session) {
  const std::lock_guard lock(mutex_);
  sessions_.insert(session);
}

void ConnectionSet::remove(HttpSession* session) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(session);
}

int ConnectionSet::count() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(sessions_.size());
}

// Letting go of a session may be what ends it, and that takes the lock: so not under it.
std::vector<std::shared_ptr<HttpSession>> ConnectionSet::alive() const {
  std::vector<std::shared_ptr<HttpSession>> alive;
  const std::lock_guard lock(mutex_);
  for (HttpSession* session : sessions_) {
    if (auto shared = session->weak_from_this().lock()) alive.push_back(std::move(shared));
  }
  return alive;
}

void ConnectionSet::poke_all() {
  for (const auto& session : alive()) session->poke();
}

void ConnectionSet::close_all() {
  for (const auto& session : alive()) session->close();
}

namespace {

// Holds the session from before the first resumption on, whichever thread that is on.
asio::awaitable<void> run_session(std::shared_ptr<HttpSession> session) {
  co_await session->run();
}

}  // namespace

void start_session(asio::io_context& io, asio::ssl::context* tls, int fd, int family,
                   ConnectionSet& connections) {
  const auto session = std::make_shared<HttpSession>(io, tls, fd, family, connections);
  connections.add(session.get());  // not before it can be shared
  asio::co_spawn(session->executor(), run_session(session), asio::detached);
}

}  // namespace kun
