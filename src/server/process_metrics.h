// Figures of this process as the kernel counts them, for the process_* metrics.
#pragma once

namespace kun {

struct ProcessFigures {
  double cpu_seconds = 0;
  double resident_bytes = 0;
  double virtual_bytes = 0;
  double start_seconds = 0;  // Unix time
  double open_files = 0;
  double open_files_max = 0;
};

// What cannot be read is 0.
ProcessFigures read_process_figures();

}  // namespace kun
