#include "server/server_context.h"

#include <fmt/format.h>

#include "base/log.h"
#include "text/utf8.h"

namespace kun {

ServerContext::ServerContext(ServerOptions server_options)
    : options(std::move(server_options)),
      pool(std::make_shared<TextPool>(options.text_thread_count, options.limits.text_queue_max)),
      responses(static_cast<std::size_t>(options.limits.responses_max),
                options.limits.responses_bytes_max) {}

std::shared_ptr<const ServedModel> ServerContext::model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

void ServerContext::set_model(ServedModel model) {
  metrics.set_model(model);
  if (model.grammars == nullptr) {
    model.grammars = std::make_shared<GrammarCompiler>(*model.tokenizer);
  }
  auto shared = std::make_shared<const ServedModel>(std::move(model));
  const std::lock_guard lock(mutex_);
  model_ = std::move(shared);
}

ServerContext::Loading ServerContext::loading() const {
  const std::lock_guard lock(mutex_);
  return loading_;
}

void ServerContext::set_loading(Loading loading) {
  const std::lock_guard lock(mutex_);
  loading_ = std::move(loading);
}

void ServerContext::note_unknown_fields(const std::vector<std::string_view>& names) {
  constexpr std::size_t kNamesMax = 256;
  constexpr std::size_t kNameBytesMax = 64;
  for (const std::string_view full_name : names) {
    const std::string_view name = full_name.substr(0, kNameBytesMax);
    {
      const std::lock_guard lock(mutex_);
      if (unknown_fields_.size() >= kNamesMax || !unknown_fields_.emplace(name).second) continue;
    }
    // {:?} escapes line ends and other things that do not belong into a log.
    LOG(kInfo, fmt::format("ignoring the unknown request field {:?}", to_valid_utf8(name)));
  }
}

}  // namespace kun
