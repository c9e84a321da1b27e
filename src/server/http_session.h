// One connection: reads requests one after the other, hands each to the handler, and sends the
// answers. While an answer is computed or sent the connection keeps reading, which is how it learns
// at once that its client has hung up; what it reads then is the next request of a pipeline.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/memory_ledger.h"
#include "server/http_listener.h"
#include "server/server_limits.h"

namespace boost::asio {
class io_context;
namespace ssl {
class context;
}
}  // namespace boost::asio

namespace kun {

class HttpSession;

// What all connections of a listener share. Thread-safe; outlives the sessions.
class ConnectionSet {
 public:
  ConnectionSet(HttpHandler& request_handler, const ServerLimits& server_limits,
                std::shared_ptr<MemoryLedger> ledger)
      : handler(request_handler),
        limits(server_limits),
        memory(ledger != nullptr ? std::move(ledger) : std::make_shared<MemoryLedger>()) {}

  void add(HttpSession* session);
  void remove(HttpSession* session);
  int count() const;

  // Sessions notice `draining` when poked; close_all() ends them, whatever they are doing.
  void poke_all();
  void close_all();

  HttpHandler& handler;
  const ServerLimits limits;
  const std::shared_ptr<MemoryLedger> memory;
  std::atomic<bool> draining = false;
  std::atomic<std::size_t> body_bytes = 0;  // of requests being read or answered

 private:
  std::vector<std::shared_ptr<HttpSession>> alive() const;

  mutable std::mutex mutex_;
  std::unordered_set<HttpSession*> sessions_;
};

// Takes over the connected socket `fd` of address family `family`. `tls` is null for plain text.
void start_session(boost::asio::io_context& io, boost::asio::ssl::context* tls, int fd, int family,
                   ConnectionSet& connections);

}  // namespace kun
