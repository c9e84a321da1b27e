// The files of `kun run-batch`, in OpenAI's batch format: a JSON object a line. Input is as hostile
// as any: what is wrong with a line becomes its entry in the output, and the next line is read.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/status.h"

namespace kun {

struct BatchLimits {
  std::size_t line_bytes_max = 16U << 20U;
  std::size_t custom_id_bytes_max = 512;
  std::int64_t lines_max = 10'000'000;
  int json_depth_max = 32;
  std::size_t json_bytes_max = 192U << 20U;  // memory of one parsed line
};

// What is wrong with a line; `code` is stable.
struct BatchError {
  std::string code;
  std::string message;
  std::string param;  // the member at fault, if it is one
};

struct BatchItem {
  std::int64_t line = 0;  // from 1
  std::string custom_id;  // empty when there is none
  std::string url;
  std::string body;  // JSON text of an object
  std::optional<BatchError> error;
};

// What the server answered.
struct BatchAnswer {
  int status = 0;
  std::string request_id;
  std::string body;
};

class BatchReader {
 public:
  // "-" is standard input.
  static Result<std::unique_ptr<BatchReader>> open(const std::string& path,
                                                   const BatchLimits& limits);

  // The next line that is not blank; nullopt at the end of the file. Fails when reading fails.
  Result<std::optional<BatchItem>> next();

 private:
  enum class Line { kWhole, kTooLong, kEnd };

  BatchReader(std::FILE* file, bool owned, const BatchLimits& limits);

  Line read_line(std::string& line);
  BatchItem parse(std::string_view text);

  const BatchLimits limits_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  std::int64_t line_number_ = 0;
  std::unordered_set<std::string> custom_ids_;
};

// One line of output, without its end. `id` names the entry.
std::string batch_entry(const BatchItem& item, const BatchAnswer& answer, std::string_view id);
std::string batch_entry(const BatchItem& item, const BatchError& error, std::string_view id);

}  // namespace kun
