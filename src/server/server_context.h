// What the handlers of a server share. Made once, outlives every request.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/exchange.h"
#include "server/json_view.h"
#include "server/response_store.h"
#include "server/served_model.h"
#include "server/server.h"
#include "server/server_metrics.h"
#include "server/text_pool.h"

namespace kun {

// Thread-safe.
class ServerContext {
 public:
  explicit ServerContext(ServerOptions server_options);

  const ServerOptions options;
  ServerMetrics metrics;
  // Shared with callbacks that the engine may still hold when the server is gone.
  const std::shared_ptr<TextPool> pool;
  std::atomic<bool> draining = false;
  ResponseStore responses;  // of /v1/responses
  MemoryLedger& memory;     // of options

  // Null while loading.
  std::shared_ptr<const ServedModel> model() const;
  void set_model(ServedModel model);

  struct Loading {
    double fraction = 0.0;
    std::string text;
  };
  Loading loading() const;
  void set_loading(Loading loading);

  // Logs each name once, and only so many of them.
  void note_unknown_fields(const std::vector<std::string_view>& names);

  JsonLimits json_limits() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const ServedModel> model_;
  Loading loading_;
  std::set<std::string, std::less<>> unknown_fields_;
};

// A route's code. Runs in the text pool.
using RouteHandler = void (*)(ServerContext& context, const std::shared_ptr<Exchange>& exchange);

}  // namespace kun
