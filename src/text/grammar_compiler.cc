#include "text/grammar_compiler.h"

#include <future>
#include <utility>

namespace kun {

GrammarCompiler::GrammarCompiler(const Tokenizer& tokenizer, GrammarCompilerLimits limits,
                                 std::shared_ptr<MemoryLedger> memory)
    : tokenizer_(tokenizer),
      limits_(limits),
      memory_(std::move(memory)),
      thread_([this] { run(); }) {}

GrammarCompiler::~GrammarCompiler() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (memory_ != nullptr) memory_->release(MemoryUse::kGrammars, alive_bytes_);
  for (const Job& job : waiting_) job.done(cancelled("the server is shutting down"));
}

void GrammarCompiler::compile(GrammarSource source, Done done, std::function<bool()> wanted) {
  std::size_t bytes = source.text.size() + source.whitespace.size();
  for (const std::string& schema : source.schemas) bytes += schema.size();
  if (bytes > limits_.source_bytes_max) {
    return done(invalid_argument("the grammar: it is longer than this server accepts"));
  }
  std::string key = source.key();
  std::shared_ptr<const Grammar> known;
  {
    const std::lock_guard lock(mutex_);
    known = find(key);
    if (known != nullptr) ++stats_.hit_count;
    if (known == nullptr && waiting_.size() < limits_.waiting_max) {
      waiting_.push_back({std::move(key), std::move(source), std::move(done), std::move(wanted)});
    }
  }
  changed_.notify_all();
  if (known != nullptr) return done(std::move(known));
  // Moved away when it was put into the line.
  if (done) done(resource_exhausted("too many grammars wait to be compiled, try again later"));
}

GrammarCompiler::Compiled GrammarCompiler::compile_now(GrammarSource source) {
  std::promise<Compiled> promise;
  compile(std::move(source), [&promise](Compiled result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.cached_count = entries_.size();
  for (const Entry& entry : entries_) stats.cached_bytes += entry.grammar->bytes();
  return stats;
}

void GrammarCompiler::run() {
  while (true) {
    Job job;
    std::shared_ptr<const Grammar> known;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      job = std::move(waiting_.front());
      waiting_.pop_front();
      known = find(job.key);  // the one before it may have been the same
    }
    if (job.wanted && !job.wanted()) continue;
    if (known == nullptr && !has_memory()) {
      job.done(
          unavailable("the grammars in use take all memory that there is for them; try again "
                      "later"));
      continue;
    }
    Compiled result = known != nullptr ? Compiled(std::move(known)) : make(job.source);
    if (result) {
      const std::lock_guard lock(mutex_);
      remember(std::move(job.key), *result);
    }
    job.done(std::move(result));
  }
}

GrammarCompiler::Compiled GrammarCompiler::make(const GrammarSource& source) {
  {
    const std::lock_guard lock(mutex_);
    ++stats_.compiled_count;
  }
  if (vocabulary_ == nullptr) {
    ASSIGN_OR_RETURN(vocabulary_, GrammarVocabulary::create(tokenizer_));
  }
  return vocabulary_->compile(source, limits_.grammar);
}

std::shared_ptr<const Grammar> GrammarCompiler::find(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  if (!found->second->grammar->usable()) {
    entries_.erase(found->second);
    by_key_.erase(found);
    return nullptr;
  }
  entries_.splice(entries_.begin(), entries_, found->second);
  return entries_.front().grammar;
}

// They grow while they are used, so all are weighed again. Requires: mutex_ is held.
std::size_t GrammarCompiler::count_alive() {
  std::size_t bytes = 0;
  std::erase_if(alive_, [&bytes](const std::weak_ptr<const Grammar>& entry) {
    const std::shared_ptr<const Grammar> grammar = entry.lock();
    if (grammar != nullptr) bytes += grammar->bytes();
    return grammar == nullptr;
  });
  if (memory_ != nullptr) memory_->adjust(MemoryUse::kGrammars, alive_bytes_, bytes);
  alive_bytes_ = bytes;
  return bytes;
}

// Room for one more, once those that nobody uses have gone as far as needed.
bool GrammarCompiler::has_memory() {
  const std::lock_guard lock(mutex_);
  const auto short_of = [this] {
    return count_alive() > limits_.alive_bytes_max || (memory_ != nullptr && memory_->over());
  };
  while (short_of()) {
    if (entries_.empty()) return false;
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return true;
}

// Grammars grow while they are used, so all are weighed again.
void GrammarCompiler::remember(std::string key, std::shared_ptr<const Grammar> grammar) {
  if (by_key_.contains(key)) return;
  alive_.push_back(grammar);
  entries_.push_front({std::move(key), std::move(grammar)});
  by_key_.emplace(entries_.front().key, entries_.begin());
  std::size_t total = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const std::size_t bytes = entry->grammar->bytes() + 2 * entry->key.size();
    if (entry != entries_.begin() && total + bytes > limits_.cache_bytes_max) {
      by_key_.erase(entry->key);
      entry = entries_.erase(entry);
    } else {
      total += bytes;
      ++entry;
    }
  }
  count_alive();
}

}  // namespace kun
