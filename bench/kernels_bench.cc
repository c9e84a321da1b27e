// kernels_bench [--json] [--kernels NAME] [--threads N]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "kernel_bench.h"

int main(int count, char** arguments) {
  kun::KernelBenchOptions options;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(arguments[i], "--json") == 0) {
      options.json = true;
    } else if (std::strcmp(arguments[i], "--kernels") == 0 && i + 1 < count) {
      options.kernels = arguments[++i];
    } else if (std::strcmp(arguments[i], "--threads") == 0 && i + 1 < count) {
      options.thread_count = std::atoi(arguments[++i]);
    } else {
      std::fprintf(stderr, "usage: kernels_bench [--json] [--kernels NAME] [--threads N]\n");
      return 2;
    }
  }
  const kun::Status status = kun::run_kernel_bench(options, std::cout);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  return 1;
}
