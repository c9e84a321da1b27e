#include "base/memory_ledger.h"

#include <fcntl.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace kun {
namespace {

// Freed memory is given back to the system at most so often: it takes milliseconds.
constexpr std::int64_t kTrimIntervalMs = 250;

// Small things are not worth reading a file for.
constexpr std::size_t kSmallBytes = 16U << 10U;

std::int64_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

std::string_view name_of(MemoryUse use) {
  switch (use) {
    case MemoryUse::kConnections: return "connections";
    case MemoryUse::kBodies: return "bodies";
    case MemoryUse::kRequests: return "requests";
    case MemoryUse::kGrammars: return "grammars";
    case MemoryUse::kResponses: return "responses";
  }
  return "requests";
}

// proc(5): /proc/self/statm has the resident pages second.
std::size_t resident_bytes() {
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[128] = {};
  const ssize_t count = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  unsigned long long size = 0;
  unsigned long long resident = 0;
  if (count <= 0 || std::sscanf(text, "%llu %llu", &size, &resident) != 2) return 0;
  return static_cast<std::size_t>(resident) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

void MemoryLedger::set_limits(std::size_t limit_bytes, std::size_t process_bytes) {
  limit_.store(limit_bytes);
  process_limit_.store(process_bytes);
}

bool MemoryLedger::try_hold(MemoryUse use, std::size_t bytes) {
  const std::size_t limit = limit_.load();
  const std::size_t before = total_.fetch_add(bytes);
  // Unsigned sums may wrap where a limit is absent; then nothing is compared.
  const bool fits = limit == 0 || (bytes <= limit && before <= limit - bytes);
  if (!fits || !resident_allows(bytes)) {
    total_.fetch_sub(bytes);
    refused_count_.fetch_add(1);
    return false;
  }
  held_[static_cast<std::size_t>(use)].fetch_add(bytes);
  return true;
}

void MemoryLedger::adjust(MemoryUse use, std::size_t from_bytes, std::size_t to_bytes) {
  const std::size_t difference = to_bytes - from_bytes;  // unsigned arithmetic wraps as it should
  held_[static_cast<std::size_t>(use)].fetch_add(difference);
  total_.fetch_add(difference);
}

bool MemoryLedger::over() const {
  const std::size_t limit = limit_.load();
  return limit > 0 && total_.load() > limit;
}

bool MemoryLedger::resident_allows(std::size_t bytes) {
  const std::size_t limit = process_limit_.load();
  if (limit == 0 || bytes < kSmallBytes) return true;
  if (resident_bytes() + bytes <= limit) return true;
  std::int64_t last = trimmed_at_ms_.load();
  const std::int64_t now = now_ms();
  if (now - last < kTrimIntervalMs || !trimmed_at_ms_.compare_exchange_strong(last, now)) {
    return false;
  }
  ::malloc_trim(0);
  return resident_bytes() + bytes <= limit;
}

}  // namespace kun
