#include "server/server_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "server/memory_budget_split.h"
#include "text/utf8.h"

namespace kun {

static ServerOptions with_memory(ServerOptions options) {
  if (options.memory == nullptr) options.memory = std::make_shared<MemoryLedger>();
  return options;
}

ServerContext::ServerContext(ServerOptions server_options)
    : options(with_memory(std::move(server_options))),
      pool(std::make_shared<TextPool>(options.text_thread_count, options.limits.text_queue_max)),
      responses(static_cast<std::size_t>(options.limits.responses_max),
                options.limits.responses_bytes_max, options.memory),
      memory(*options.memory) {}

// Documents live while a thread of the text pool reads them; a quarter of what requests may hold is
// kept free for them (see split_budget()).
JsonLimits ServerContext::json_limits() const {
  std::size_t bytes = options.limits.json_bytes_max;
  if (memory.limit() > 0) bytes = std::min(bytes, parsing_bytes(memory, options.text_thread_count));
  return {options.limits.json_depth_max, bytes};
}

std::shared_ptr<const ServedModel> ServerContext::model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

void ServerContext::set_model(ServedModel model) {
  metrics.set_model(model);
  if (model.grammars == nullptr) {
    model.grammars =
        std::make_shared<GrammarCompiler>(*model.tokenizer, grammar_limits(memory), options.memory);
  }
  if (model.thoughts_end == nullptr) {
    model.thoughts_end = make_end_mark("</think>", *model.tokenizer);
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
