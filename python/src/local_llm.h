// A model with an engine in this process, as Python holds it. It knows the two ends that a script
// has and a server has not: close() while somebody still waits, and fork(), after which the child
// has this object but none of its threads.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/status.h"
#include "device/device.h"
#include "runtime/engine_setup.h"
#include "runtime/model_bundle.h"
#include "text/constrain_after.h"
#include "text/grammar_compiler.h"

namespace kun {

struct LocalLlmOptions {
  std::string model;
  std::string kernels;  // empty: the best of this machine
  int thread_count = 0;
  ComputeType compute = ComputeType::kBFloat16;
  std::optional<DType> cache;  // empty: as `compute` says
  BundleOptions bundle;
  EngineSettings engine;
  std::string speculative_config;  // JSON; empty: no speculation
};

// Thread-safe once opened.
class LocalLlm {
 public:
  static Result<std::shared_ptr<LocalLlm>> open(const LocalLlmOptions& options);
  ~LocalLlm();

  const ModelBundle& bundle() const { return *bundle_; }
  const Tokenizer& tokenizer() const { return *bundle_->tokenizer; }
  const std::string& device() const { return device_description_; }
  int context_length() const { return context_length_; }
  std::int64_t kv_cache_bytes() const { return kv_cache_bytes_; }
  std::int64_t kv_token_capacity() const { return kv_token_capacity_; }

  // kUnavailable after close(), and in a process that has this object from its parent.
  Status usable() const;
  Result<std::shared_ptr<TokenStream>> generate(GenerateRequest request) const;
  // Waits for it; the compiler keeps what was compiled last.
  Result<std::shared_ptr<const Grammar>> compile(GrammarSource source) const;
  std::shared_ptr<const EndMark> thoughts_end() const;  // "</think>" in this vocabulary
  Result<EngineStats> stats() const;
  bool healthy() const;

  // Ends every generation and the engine's threads; waits for the step in progress. Idempotent.
  void close();

 private:
  LocalLlm();

  const pid_t process_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<const ModelBundle> bundle_;
  std::string device_description_;
  int context_length_ = 0;
  std::int64_t kv_cache_bytes_ = 0;
  std::int64_t kv_token_capacity_ = 0;
  mutable std::mutex mutex_;
  std::unique_ptr<Engine> engine_;                       // null once closed
  mutable std::shared_ptr<const EndMark> thoughts_end_;  // made when first asked for
  mutable std::unique_ptr<GrammarCompiler> grammars_;    // made for the first grammar
};

}  // namespace kun
