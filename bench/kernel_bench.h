// Times the kernels as models use them, each against probes of the same second: shared machines
// change speed by the minute, so only shares of what the machine can do right now mean anything.
#pragma once

#include <ostream>
#include <string>

#include "base/status.h"

namespace kun {

struct KernelBenchOptions {
  std::string kernels{};  // empty: the best table
  int thread_count = 0;   // 0: as a device chooses
  bool json = false;
  std::string svg{};     // file for a picture of all rows under the roofline
  std::string filter{};  // only rows whose name contains it
  double seconds_per_row = 0.15;
};

// Writes a table, or JSON, to `out`. Takes under a minute on two cores.
Status run_kernel_bench(const KernelBenchOptions& options, std::ostream& out);

}  // namespace kun
