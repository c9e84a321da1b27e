// kun bench latency and throughput: the engine without a server around it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "cli.h"

namespace kun {

struct OfflineBenchArguments {
  ModelArguments model;
  int input_length = 512;
  int output_length = 128;
  int batch_size = 1;      // latency: sequences that start together
  int request_count = 64;  // throughput: sequences in all
  int repeat_count = 1;
  int running_max = 256;
  std::int64_t kv_cache_bytes = 0;
  std::string speculative_config;
  bool json = false;
};

Status run_latency_bench(const OfflineBenchArguments& arguments);
Status run_throughput_bench(const OfflineBenchArguments& arguments);

}  // namespace kun
