// Compiles the grammars of requests on a thread of its own, one after the other, so that a hostile
// one makes the next grammars wait and nobody else; and keeps those used last, within a bound of
// memory, because clients send the same few over and over.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/memory_ledger.h"
#include "text/grammar.h"

namespace kun {

struct GrammarCompilerLimits {
  GrammarLimits grammar;
  std::size_t cache_bytes_max = std::size_t{256} << 20U;  // the one used last is kept anyway
  // Of all that are in use or kept; beyond it none is compiled (kUnavailable).
  std::size_t alive_bytes_max = static_cast<std::size_t>(-1);
  std::size_t waiting_max = 64;
  std::size_t source_bytes_max = std::size_t{512} << 10U;
};

// Thread-safe.
class GrammarCompiler {
 public:
  using Compiled = Result<std::shared_ptr<const Grammar>>;
  using Done = std::function<void(Compiled)>;

  // `tokenizer` must outlive the compiler. Its vocabulary is prepared when first needed.
  // Grammars are counted in `memory`; null: nowhere.
  explicit GrammarCompiler(const Tokenizer& tokenizer, GrammarCompilerLimits limits = {},
                           std::shared_ptr<MemoryLedger> memory = nullptr);
  ~GrammarCompiler();

  // Calls `done` once: at once and from here when the grammar is known or the line is full
  // (kResourceExhausted), else from the compiling thread, where it must be quick. When its turn
  // comes and `wanted` says no, the grammar is dropped and `done` never called.
  void compile(GrammarSource source, Done done, std::function<bool()> wanted = {});

  // Waits for the result.
  Compiled compile_now(GrammarSource source);

  struct Stats {
    std::size_t cached_count = 0;
    std::size_t cached_bytes = 0;
    std::uint64_t hit_count = 0;
    std::uint64_t compiled_count = 0;  // those refused included
  };
  Stats stats() const;

 private:
  struct Job {
    std::string key;
    GrammarSource source;
    Done done;
    std::function<bool()> wanted;
  };
  struct Entry {
    std::string key;
    std::shared_ptr<const Grammar> grammar;
  };

  void run();
  Compiled make(const GrammarSource& source);
  std::shared_ptr<const Grammar> find(const std::string& key);
  bool has_memory();
  std::size_t count_alive();
  void remember(std::string key, std::shared_ptr<const Grammar> grammar);

  const Tokenizer& tokenizer_;
  const GrammarCompilerLimits limits_;
  const std::shared_ptr<MemoryLedger> memory_;
  std::unique_ptr<const GrammarVocabulary> vocabulary_;  // the compiling thread's

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_;
  std::list<Entry> entries_;  // used last first
  std::unordered_map<std::string, std::list<Entry>::iterator> by_key_;
  std::vector<std::weak_ptr<const Grammar>> alive_;  // kept here, or in use somewhere
  std::size_t alive_bytes_ = 0;                      // as memory_ was told
  Stats stats_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kun
