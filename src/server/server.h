// The HTTP server: OpenAI's API, spoken over sockets, in front of a Generator. It can be started
// before the model is loaded; until set_model() it answers 503 and says how far loading has got.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_ledger.h"
#include "base/status.h"
#include "server/http_listener.h"
#include "server/served_model.h"
#include "server/server_limits.h"
#include "server/tenant_keys.h"

namespace kun {

// Who may see pages that are not part of the API.
enum class PageAccess {
  kOpen,  // everybody
  kKey,   // whoever has an API key
  kOff,   // nobody: 404
};

struct CorsOptions {
  std::vector<std::string> origins = {"*"};
  std::vector<std::string> methods = {"*"};
  std::vector<std::string> headers = {"*"};
  bool allow_credentials = false;
};

struct ServerOptions {
  std::string host = "0.0.0.0";
  int port = 8000;  // 0: any free one
  std::string uds;  // listen on this unix socket instead
  TlsOptions tls;
  std::vector<std::string> api_keys;  // of tenants without names
  std::vector<ApiKey> tenant_keys;    // none of either: everybody may use the API
  bool isolate_tenants = true;        // no tenant finds another's prompts in the cache
  CorsOptions cors;
  ServerLimits limits;
  // Of what requests hold; whoever sets its limits does so before set_model(). Null: the server's
  // own, without limits.
  std::shared_ptr<MemoryLedger> memory;
  int io_thread_count = 1;
  int text_thread_count = 2;
  PageAccess metrics_access = PageAccess::kOpen;
  PageAccess health_access = PageAccess::kOpen;  // also /ping and /version
  bool allow_request_chat_template = false;
  bool log_requests = false;
  bool enable_request_id_headers = false;
  std::string root_path;  // prefix that a proxy in front did not remove
  std::string version = "0.1.0";
};

// Thread-safe.
class Server {
 public:
  // Listens at once. Fails when the address, the certificate or a limit is unusable.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  ~Server();

  // Before there is a model: what /health says. `fraction` is in [0, 1].
  void set_loading_progress(double fraction, std::string_view text);

  // From now on requests are served. Call once.
  void set_model(ServedModel model);

  int port() const;  // 0 on a unix socket

  // Takes no new connections, answers new requests with 503, and waits until the running ones
  // have finished. False when some had not after `timeout`; stop() then cuts them off.
  bool drain(std::chrono::milliseconds timeout);

  // Closes all connections and ends all threads. Idempotent.
  void stop();

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kun
