// Listens on a TCP port or a unix socket, speaks HTTP/1.1 (with TLS if asked to) on a few I/O
// threads, and hands complete requests to an HttpHandler. Nothing behind this header knows sockets.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/memory_ledger.h"
#include "base/status.h"
#include "server/exchange.h"
#include "server/http_message.h"
#include "server/server_limits.h"

namespace kun {

// All functions are called on I/O threads, concurrently for different connections, and must
// neither block nor compute.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // The head of a request has arrived: gives it its id.
  virtual void begin(HttpRequest& request) = 0;

  // Judges a request by its head, before its body is read. An answer refuses it.
  virtual std::optional<HttpResponse> refuse(const HttpRequest& request) = 0;

  // Answers through the exchange, now or later, from any thread.
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;

  // The answer to bytes that are not an acceptable HTTP request. `request` holds what could be read
  // of it, which may be nothing.
  virtual HttpResponse malformed(const HttpRequest& request, int status,
                                 const std::string& message) = 0;

  // Adds headers that go with every answer.
  virtual void decorate(const HttpRequest& request, HttpResponse& response) = 0;

  // An answer has been sent, or given up (then `complete` is false).
  virtual void answered(const HttpRequest& request, int status, bool complete) = 0;
};

struct TlsOptions {
  std::string certificate_file;  // PEM chain; TLS is on when this is set
  std::string key_file;          // empty: the key is in certificate_file
};

struct ListenerOptions {
  std::string host = "0.0.0.0";
  int port = 8000;  // 0: any free one
  std::string uds;  // path of a unix socket; host and port are unused then
  TlsOptions tls;
  int io_thread_count = 1;
  ServerLimits limits;
  std::shared_ptr<MemoryLedger> memory;  // null: one without limits
};

class HttpListener {
 public:
  // `handler` must outlive the listener.
  static Result<std::unique_ptr<HttpListener>> start(const ListenerOptions& options,
                                                     HttpHandler& handler);
  ~HttpListener();

  int port() const;  // 0 for a unix socket
  int connection_count() const;

  // Takes no new connections, closes idle ones and lets the rest finish what they are doing.
  void drain();

  // Waits until no connection is left; false when that took longer.
  bool wait_drained(std::chrono::milliseconds timeout);

  // Closes everything and ends the threads. Idempotent.
  void stop();

 private:
  class Impl;
  explicit HttpListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kun
