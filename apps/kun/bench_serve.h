// kun bench serve: streaming clients against a running server, whoever made it.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace kun {

struct ServeBenchArguments {
  std::string url = "http://127.0.0.1:8000";
  std::string model;  // empty: the server's first
  std::string api_key;
  int request_count = 64;
  int concurrency = 16;
  int input_length = 128;
  int prefix_length = 0;  // tokens at the start of every prompt that are the same
  int output_length = 64;
  int vocabulary = 1000;      // prompts are random ids below this
  double request_rate = 0.0;  // arrivals per second; 0: as fast as `concurrency` lets them
  bool json = false;
};

// Measures output tokens/s, time to first token and inter-token latency.
Status run_serve_bench(const ServeBenchArguments& arguments);

}  // namespace kun
