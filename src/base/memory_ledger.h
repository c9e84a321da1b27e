// Who holds how much of the memory that requests may take. A process that promises to stay below a
// bound must know what it has promised already: whoever is about to take much of it asks here
// first, and is refused while there is still time to say so. What the ledger cannot see (fragments
// of the heap, libraries) it finds in the process's resident memory, which it looks at as well.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace kun {

enum class MemoryUse : std::uint8_t {
  kConnections,
  kBodies,     // of requests that are being read, or not yet answered
  kRequests,   // prompts, and what they are expected to be answered with
  kGrammars,   // compiled
  kResponses,  // of /v1/responses, kept for their clients
};
inline constexpr std::size_t kMemoryUseCount = 5;
std::string_view name_of(MemoryUse use);

// Thread-safe. Without limits it only counts.
class MemoryLedger {
 public:
  // `limit_bytes`: what all uses may hold together. `process_bytes`: what the process may have
  // resident, everything included. 0: no limit. Call before the first request, or when a limit
  // becomes known.
  void set_limits(std::size_t limit_bytes, std::size_t process_bytes);
  std::size_t limit() const { return limit_.load(); }
  std::size_t process_limit() const { return process_limit_.load(); }

  // False, and nothing is held, when it would exceed a limit.
  [[nodiscard]] bool try_hold(MemoryUse use, std::size_t bytes);

  // For what is there already, whether it may be or not. Follow it with over().
  void adjust(MemoryUse use, std::size_t from_bytes, std::size_t to_bytes);
  void release(MemoryUse use, std::size_t bytes) { adjust(use, bytes, 0); }

  // More is held than may be.
  bool over() const;

  // No request that needs so much can ever be served.
  bool never(std::size_t bytes) const { return limit() > 0 && bytes > limit(); }

  std::size_t held(MemoryUse use) const { return held_[static_cast<std::size_t>(use)].load(); }
  std::size_t held() const { return total_.load(); }
  std::uint64_t refused_count() const { return refused_count_.load(); }

 private:
  bool resident_allows(std::size_t bytes);

  std::atomic<std::size_t> limit_ = 0;
  std::atomic<std::size_t> process_limit_ = 0;
  std::array<std::atomic<std::size_t>, kMemoryUseCount> held_ = {};
  std::atomic<std::size_t> total_ = 0;
  std::atomic<std::uint64_t> refused_count_ = 0;
  std::atomic<std::int64_t> trimmed_at_ms_ = -1'000'000;
};

// A share of the ledger, given back when it goes. Movable.
class MemoryHold {
 public:
  MemoryHold() = default;
  // Of what try_hold() has granted.
  MemoryHold(MemoryLedger& ledger, MemoryUse use, std::size_t bytes)
      : ledger_(&ledger), use_(use), bytes_(bytes) {}
  MemoryHold(MemoryHold&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)), use_(other.use_), bytes_(other.bytes_) {}
  MemoryHold& operator=(MemoryHold&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(use_, other.use_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MemoryHold() {
    if (ledger_ != nullptr) ledger_->release(use_, bytes_);
  }

 private:
  MemoryLedger* ledger_ = nullptr;
  MemoryUse use_ = MemoryUse::kRequests;
  std::size_t bytes_ = 0;
};

// Resident memory of this process in bytes; 0 when it cannot be read.
std::size_t resident_bytes();

}  // namespace kun
