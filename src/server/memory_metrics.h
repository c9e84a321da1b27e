// What the ledger of memory says, for /metrics.
#pragma once

#include <string>

#include "base/memory_ledger.h"

namespace kun {

std::string memory_metrics(const MemoryLedger& memory);

}  // namespace kun
