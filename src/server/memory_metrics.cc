#include "server/memory_metrics.h"

#include <fmt/format.h>

namespace kun {

std::string memory_metrics(const MemoryLedger& memory) {
  std::string text =
      "# HELP kun:memory_held_bytes Memory that requests hold, by what for.\n"
      "# TYPE kun:memory_held_bytes gauge\n";
  for (std::size_t i = 0; i < kMemoryUseCount; ++i) {
    const auto use = static_cast<MemoryUse>(i);
    text += fmt::format("kun:memory_held_bytes{{use=\"{}\"}} {}\n", name_of(use), memory.held(use));
  }
  text += fmt::format(
      "# HELP kun:memory_limit_bytes What all of them may hold together; 0: no limit.\n"
      "# TYPE kun:memory_limit_bytes gauge\nkun:memory_limit_bytes {}\n",
      memory.limit());
  text += fmt::format(
      "# HELP kun:memory_refused_total Requests refused because they would have exceeded it.\n"
      "# TYPE kun:memory_refused_total counter\nkun:memory_refused_total {}\n",
      memory.refused_count());
  return text;
}

}  // namespace kun
