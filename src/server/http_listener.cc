#include "server/http_listener.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "server/http_session.h"
#include "server/http_wire.h"

namespace kun {
namespace {

namespace asio = boost::asio;
using asio::as_tuple;
using asio::use_awaitable;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

// A unix socket whose server has died leaves its file behind; one that still answers is in use.
Status remove_stale_socket(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return {};
  if (!S_ISSOCK(info.st_mode)) {
    return invalid_argument(fmt::format("{} exists and is not a socket", path));
  }
  asio::io_context io;
  asio::local::stream_protocol::socket probe(io);
  error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (!error) return invalid_argument(fmt::format("{} is in use by another server", path));
  ::unlink(path.c_str());
  return {};
}

Result<std::unique_ptr<asio::ssl::context>> open_tls(const TlsOptions& options) {
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  const auto failed = [&](const char* what, const std::string& file) {
    return invalid_argument(fmt::format("cannot use {} {}: {}", what, file, error.message()));
  };
  tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv3 |
                   asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1);
  tls->use_certificate_chain_file(options.certificate_file, error);
  if (error) return failed("the TLS certificate", options.certificate_file);
  const std::string& key = options.key_file.empty() ? options.certificate_file : options.key_file;
  tls->use_private_key_file(key, asio::ssl::context::pem, error);
  if (error) return failed("the TLS key", key);
  return tls;
}

}  // namespace

class HttpListener::Impl {
 public:
  Impl(const ListenerOptions& options, HttpHandler& handler)
      : options_(options),
        connections_(handler, options.limits, options.memory),
        io_(options.io_thread_count) {}

  Status open();
  void run_threads();
  void drain();
  bool wait_drained(std::chrono::milliseconds timeout);
  void stop();

  int port() const { return port_; }
  int connection_count() const { return connections_.count(); }

 private:
  Status open_tcp();
  Status open_unix();
  template <class Acceptor>
  asio::awaitable<void> accept(Acceptor& acceptor, int family);
  void admit(int fd, int family);
  void close_acceptors();

  const ListenerOptions options_;
  ConnectionSet connections_;
  std::unique_ptr<asio::ssl::context> tls_;
  asio::io_context io_;
  // Without it run() would return once all is closed, and what stop() posts would never happen.
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::optional<asio::ip::tcp::acceptor> tcp_;
  std::optional<asio::local::stream_protocol::acceptor> unix_;
  int port_ = 0;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

Status HttpListener::Impl::open() {
  if (options_.tls.certificate_file.empty() && !options_.tls.key_file.empty()) {
    return invalid_argument("a TLS key is of no use without its certificate");
  }
  if (!options_.tls.certificate_file.empty()) {
    ASSIGN_OR_RETURN(tls_, open_tls(options_.tls));
  }
  return options_.uds.empty() ? open_tcp() : open_unix();
}

Status HttpListener::Impl::open_tcp() {
  error_code error;
  const auto failed = [&](const char* what) {
    return unavailable(
        fmt::format("cannot {} {}:{}: {}", what, options_.host, options_.port, error.message()));
  };
  if (options_.port < 0 || options_.port > 65535) {
    return invalid_argument(fmt::format("{} is not a port", options_.port));
  }
  asio::ip::tcp::resolver resolver(io_);
  const auto found = resolver.resolve(options_.host, std::to_string(options_.port),
                                      asio::ip::resolver_base::passive, error);
  if (error || found.empty()) return failed("resolve");
  const asio::ip::tcp::endpoint endpoint = found.begin()->endpoint();
  tcp_.emplace(asio::make_strand(io_));
  tcp_->open(endpoint.protocol(), error);
  if (error) return failed("open a socket for");
  tcp_->set_option(asio::socket_base::reuse_address(true), error);
  tcp_->bind(endpoint, error);
  if (error) return failed("bind to");
  tcp_->listen(options_.limits.listen_backlog, error);
  if (error) return failed("listen on");
  port_ = tcp_->local_endpoint(error).port();
  const int family = endpoint.protocol().family();
  asio::co_spawn(tcp_->get_executor(), accept(*tcp_, family), asio::detached);
  return {};
}

Status HttpListener::Impl::open_unix() {
  // sockaddr_un holds 108 bytes with the terminating zero.
  if (options_.uds.size() > 107) return invalid_argument("the unix socket's path is too long");
  RETURN_IF_ERROR(remove_stale_socket(options_.uds));
  error_code error;
  const asio::local::stream_protocol::endpoint endpoint(options_.uds);
  unix_.emplace(asio::make_strand(io_));
  unix_->open(endpoint.protocol(), error);
  if (!error) unix_->bind(endpoint, error);
  if (!error) unix_->listen(options_.limits.listen_backlog, error);
  if (error) {
    return unavailable(fmt::format("cannot listen on {}: {}", options_.uds, error.message()));
  }
  asio::co_spawn(unix_->get_executor(), accept(*unix_, AF_UNIX), asio::detached);
  return {};
}

template <class Acceptor>
asio::awaitable<void> HttpListener::Impl::accept(Acceptor& acceptor, int family) {
  asio::steady_timer pause(acceptor.get_executor());
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(as_tuple(use_awaitable));
    if (error == asio::error::operation_aborted) break;
    if (error) {
      // Out of descriptors, most likely: others must finish first.
      LOG(kWarning, fmt::format("cannot accept a connection: {}", error.message()));
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(as_tuple(use_awaitable));
      continue;
    }
    error_code ignored;
    const int fd = socket.release(ignored);
    if (fd >= 0) admit(fd, family);
  }
}

void HttpListener::Impl::admit(int fd, int family) {
  const bool full =
      connections_.count() >= options_.limits.connections_max || connections_.memory->over();
  if (full || connections_.draining) {
    if (!tls_) {
      const HttpResponse response =
          connections_.handler.malformed({}, 503, "too many connections are open; try again later");
      HttpWireOptions wire;
      wire.keep_alive = false;
      const std::string bytes = format_head(response, response.body.size(), wire) + response.body;
      // What does not fit the empty send buffer of a new connection is not worth waiting for.
      static_cast<void>(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
      ::shutdown(fd, SHUT_WR);
    }
    ::close(fd);
    return;
  }
  if (family != AF_UNIX) {
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  start_session(io_, tls_.get(), fd, family, connections_);
}

void HttpListener::Impl::run_threads() {
  for (int i = 0; i < std::max(options_.io_thread_count, 1); ++i) {
    threads_.emplace_back([this] { io_.run(); });
  }
}

void HttpListener::Impl::close_acceptors() {
  error_code ignored;
  if (tcp_) tcp_->close(ignored);
  if (unix_ && unix_->is_open()) {
    unix_->close(ignored);
    ::unlink(options_.uds.c_str());
  }
}

void HttpListener::Impl::drain() {
  connections_.draining = true;
  if (tcp_) asio::post(tcp_->get_executor(), [this] { close_acceptors(); });
  if (unix_) asio::post(unix_->get_executor(), [this] { close_acceptors(); });
  connections_.poke_all();
}

bool HttpListener::Impl::wait_drained(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (connections_.count() > 0) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

void HttpListener::Impl::stop() {
  if (std::exchange(stopped_, true)) return;
  drain();
  connections_.close_all();
  if (!wait_drained(std::chrono::seconds(2))) {
    LOG(kWarning, fmt::format("{} connections did not close in time", connections_.count()));
  }
  io_.stop();
  for (std::thread& thread : threads_) thread.join();
}

HttpListener::HttpListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpListener::~HttpListener() {
  stop();
}

Result<std::unique_ptr<HttpListener>> HttpListener::start(const ListenerOptions& options,
                                                          HttpHandler& handler) {
  auto impl = std::make_unique<Impl>(options, handler);
  RETURN_IF_ERROR(impl->open());
  impl->run_threads();
  return std::unique_ptr<HttpListener>(new HttpListener(std::move(impl)));
}

int HttpListener::port() const {
  return impl_->port();
}

int HttpListener::connection_count() const {
  return impl_->connection_count();
}

void HttpListener::drain() {
  impl_->drain();
}

bool HttpListener::wait_drained(std::chrono::milliseconds timeout) {
  return impl_->wait_drained(timeout);
}

void HttpListener::stop() {
  impl_->stop();
}

}  // namespace kun
