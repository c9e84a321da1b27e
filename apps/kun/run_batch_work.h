// Runs the requests of a batch through the server's own routes, without a socket: what a request
// may say, and what is answered, is decided by the same code as for `kun serve`. A window of lines
// is in progress together; entries are written in the order of the lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "run_batch_file.h"
#include "server/server.h"

namespace kun {

struct BatchCounts {
  std::int64_t read = 0;      // lines that are not blank
  std::int64_t answered = 0;  // with status 200
  std::int64_t failed = 0;    // with another status, or never sent
};

struct BatchWork {
  ServerOptions options;
  ServedModel model;
  int window_max = 512;  // lines read and not yet written
  std::function<Status(std::string_view line)> write;
  std::function<void(const BatchCounts& counts)> progress;  // now and then, and at the end
};

// Fails when reading or writing fails; requests that fail are entries.
Result<BatchCounts> run_batch(BatchReader& reader, BatchWork work);

}  // namespace kun
