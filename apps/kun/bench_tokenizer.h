// kun bench tokenizer: how fast a model's tokenizer loads and encodes, on one thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace kun {

struct TokenizerBenchArguments {
  std::string model;
  std::vector<std::string> files;
};

// Prints megabytes of text a second for each file, in portions of a request's size and at once.
Status run_tokenizer_bench(const TokenizerBenchArguments& arguments);

}  // namespace kun
