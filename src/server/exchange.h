// One request and the way back to its client. The connection owns an Exchange while it answers;
// whoever produces the answer holds it too, and may write to it from any thread. Output waits in
// the Exchange until the client takes it: producers watch pending_bytes() and pause.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "server/http_message.h"

namespace kun {

// What a producer hears from its connection. Called on an I/O thread: must be quick.
class ExchangeListener {
 public:
  virtual ~ExchangeListener() = default;
  virtual void on_closed() = 0;   // the client has gone; nothing more will be sent
  virtual void on_drained() = 0;  // everything written so far has been sent
  virtual void on_idle() = 0;     // nothing has been sent for a while
};

// Thread-safe.
class Exchange {
 public:
  explicit Exchange(HttpRequest request, std::function<void()> wake)
      : request_(std::move(request)), wake_(std::move(wake)) {}

  const HttpRequest& request() const { return request_; }

  // The body, which is gone afterwards: it need not be held while its answer is computed. To be
  // called by one thread, the one that handles the request.
  std::string take_body() { return std::move(request_.body); }

  // --- The producer's side ----------------------------------------------------------------------

  // The whole answer at once. Ignored after the client has gone.
  void respond(HttpResponse response);

  // Or piece by piece: head, then any number of writes, then end().
  void begin(HttpResponse head);
  void write(std::string_view bytes);
  void end();

  bool closed() const;
  std::size_t pending_bytes() const;

  // Held until the exchange is over: this is what keeps a producer alive. If the client has gone
  // already, on_closed() is called at once.
  void set_listener(std::shared_ptr<ExchangeListener> listener);

  // --- The connection's side --------------------------------------------------------------------

  struct Output {
    std::optional<HttpResponse> head;
    std::string bytes;
    bool streaming = false;  // the body has no known length
    bool ended = false;      // nothing follows

    bool empty() const { return !head && bytes.empty() && !ended; }
  };
  Output take();

  void notify_drained();
  void notify_idle();

  // The answer is complete or nobody wants it any more. Idempotent.
  void close(bool client_gone);

 private:
  std::shared_ptr<ExchangeListener> listener() const;

  HttpRequest request_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::shared_ptr<ExchangeListener> listener_;
  std::optional<HttpResponse> head_;
  std::string pending_;
  bool begun_ = false;
  bool streaming_ = false;
  bool ended_ = false;
  bool closed_ = false;
};

}  // namespace kun
