// The flags of `kun serve` that say what happens when there is more to do than can be done: who has
// which share, what is refused, and how much memory it may all take.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "server/server.h"

namespace kun {

struct OverloadArguments {
  std::string api_key_file;
  bool isolate_tenants = true;
  std::int64_t memory_budget_bytes = 0;
  double ttft_slo_ms = 0.0;
  double tpot_slo_ms = 0.0;
  double timeout_ms = 0.0;
};

void add_overload_flags(CLI::App& command, OverloadArguments& arguments);

// Reads the file of keys and sets the rest; makes the ledger of memory.
Status apply_overload(const OverloadArguments& arguments, ServerOptions& options);

}  // namespace kun
