#include "local_llm.h"

#include <fmt/format.h>
#include <unistd.h>

#include "backends/cpu/cpu_device.h"

namespace kun {

LocalLlm::LocalLlm() : process_(::getpid()) {}

LocalLlm::~LocalLlm() {
  close();
  // The threads of a device cannot be joined by a child that does not have them.
  if (::getpid() != process_) {
    static_cast<void>(device_.release());
    static_cast<void>(grammars_.release());
  }
}

Result<std::shared_ptr<LocalLlm>> LocalLlm::open(const LocalLlmOptions& options) {
  const std::shared_ptr<LocalLlm> llm(new LocalLlm());
  DeviceOptions device;
  device.thread_count = options.thread_count;
  device.kernels = options.kernels;
  device.compute = options.compute;
  device.cache = options.cache;
  ASSIGN_OR_RETURN(llm->device_, open_cpu_device(device));
  BundleOptions bundle = options.bundle;
  bundle.next_token_module = needs_next_token_module(options.speculative_config);
  ASSIGN_OR_RETURN(llm->bundle_, load_bundle(options.model, *llm->device_, bundle));
  if (llm->bundle_->tokenizer == nullptr) {
    return invalid_argument(
        fmt::format("{} comes without a tokenizer; give tokenizer=", options.model));
  }
  EngineSettings settings = options.engine;
  ASSIGN_OR_RETURN(settings.speculator,
                   load_speculator(options.speculative_config, *llm->bundle_, *llm->device_));
  ASSIGN_OR_RETURN(EngineSetup setup, make_engine(*llm->bundle_, llm->device_->ops(), settings));
  llm->device_description_ = llm->device_->description();
  llm->context_length_ = setup.context_length;
  llm->kv_cache_bytes_ = setup.kv_cache_bytes;
  llm->kv_token_capacity_ = setup.kv_token_capacity;
  llm->engine_ = std::move(setup.engine);
  return llm;
}

Status LocalLlm::usable() const {
  // Before the lock: in a child a thread that is not there may hold it.
  if (::getpid() != process_) {
    return unavailable(
        "this LLM was made before fork() and its threads exist in the parent only; make it in the "
        "child, or start processes with the spawn method");
  }
  const std::lock_guard lock(mutex_);
  if (engine_ == nullptr) return unavailable("this LLM is closed");
  return {};
}

Result<std::shared_ptr<TokenStream>> LocalLlm::generate(GenerateRequest request) const {
  RETURN_IF_ERROR(usable());
  const std::lock_guard lock(mutex_);
  if (engine_ == nullptr) return unavailable("this LLM is closed");
  return engine_->generate(std::move(request));
}

Result<std::shared_ptr<const Grammar>> LocalLlm::compile(GrammarSource source) const {
  RETURN_IF_ERROR(usable());
  GrammarCompiler* compiler = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (grammars_ == nullptr) grammars_ = std::make_unique<GrammarCompiler>(tokenizer());
    compiler = grammars_.get();
  }
  return compiler->compile_now(std::move(source));
}

std::shared_ptr<const EndMark> LocalLlm::thoughts_end() const {
  const std::lock_guard lock(mutex_);
  if (thoughts_end_ == nullptr) thoughts_end_ = make_end_mark("</think>", tokenizer());
  return thoughts_end_;
}

Result<EngineStats> LocalLlm::stats() const {
  RETURN_IF_ERROR(usable());
  const std::lock_guard lock(mutex_);
  if (engine_ == nullptr) return unavailable("this LLM is closed");
  return engine_->stats();
}

bool LocalLlm::healthy() const {
  if (!usable().ok()) return false;
  const std::lock_guard lock(mutex_);
  return engine_ != nullptr && engine_->healthy();
}

void LocalLlm::close() {
  if (::getpid() != process_) {
    static_cast<void>(engine_.release());
    return;
  }
  std::unique_ptr<Engine> engine;
  {
    const std::lock_guard lock(mutex_);
    engine = std::move(engine_);
  }
}

}  // namespace kun
