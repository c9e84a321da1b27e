#include "server/server.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "server/router.h"
#include "server/server_context.h"

namespace kun {

class Server::Impl {
 public:
  explicit Impl(ServerOptions options) : context(std::move(options)), router(context) {}

  ServerContext context;
  Router router;
  std::unique_ptr<HttpListener> listener;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() {
  stop();
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  ListenerOptions listen;
  listen.host = options.host;
  listen.port = options.port;
  listen.uds = options.uds;
  listen.tls = options.tls;
  listen.io_thread_count = options.io_thread_count;
  listen.limits = options.limits;
  if (options.memory == nullptr) options.memory = std::make_shared<MemoryLedger>();
  listen.memory = options.memory;
  if (!options.root_path.empty() && !options.root_path.starts_with('/')) {
    return invalid_argument("the root path must begin with /");
  }
  while (options.root_path.ends_with('/')) options.root_path.pop_back();
  auto impl = std::make_unique<Impl>(std::move(options));
  ASSIGN_OR_RETURN(impl->listener, HttpListener::start(listen, impl->router));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

void Server::set_loading_progress(double fraction, std::string_view text) {
  impl_->context.set_loading({std::clamp(fraction, 0.0, 1.0), std::string(text)});
}

void Server::set_model(ServedModel model) {
  CHECK(model.generator != nullptr && model.tokenizer != nullptr && !model.names.empty());
  impl_->context.set_model(std::move(model));
}

int Server::port() const {
  return impl_->listener->port();
}

bool Server::drain(std::chrono::milliseconds timeout) {
  impl_->context.draining = true;
  impl_->listener->drain();
  const bool drained = impl_->listener->wait_drained(timeout);
  if (!drained) {
    LOG(kWarning, fmt::format("{} connections were still busy after {} ms",
                              impl_->listener->connection_count(), timeout.count()));
  }
  return drained;
}

void Server::stop() {
  impl_->context.draining = true;
  impl_->listener->stop();
  // After the connections: their last act is to let go of generations, in the pool.
  impl_->context.pool->stop();
}

}  // namespace kun
