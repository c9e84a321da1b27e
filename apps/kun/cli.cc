#include "cli.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "backends/cpu/cpu_device.h"
#include "runtime/cache_dtype.h"

namespace kun {
namespace {

constexpr std::size_t kTextBytesMax = std::size_t{1} << 30U;

// One line on a terminal that is written over as loading proceeds.
LoadProgress progress_line(bool quiet) {
  if (quiet || ::isatty(STDERR_FILENO) == 0) return {};
  return [shown = std::int64_t{-1}](std::int64_t done, std::int64_t total) mutable {
    const std::int64_t percent = total > 0 ? std::min<std::int64_t>(100 * done / total, 100) : 100;
    if (percent == shown) return;
    shown = percent;
    fmt::print(stderr, "\rloading weights {:3d} %{}", percent, percent == 100 ? "\n" : "");
  };
}

}  // namespace

void add_model_arguments(CLI::App& command, ModelArguments& arguments) {
  command
      .add_option("model,--model", arguments.model,
                  "GGUF file, Hugging Face folder, script:FILE, or the name of a pulled model")
      ->required();
  command
      .add_option(
          "--dtype", arguments.dtype,
          "arithmetic and cache: auto (fast path, bfloat16 cache), bfloat16, float32 (exact)")
      ->check(CLI::IsMember({"auto", "bfloat16", "float32"}))
      ->capture_default_str();
  command
      .add_option("--latent-form", arguments.latent_form,
                  "how latent attention (DeepSeek V2 to V3.2) computes prompts: absorbed (as it "
                  "computes outputs, so that no bit depends on company), by-shape (faster on long "
                  "prompts, whose last bits then depend on how they were cut)")
      ->check(CLI::IsMember({"absorbed", "by-shape"}))
      ->capture_default_str();
  add_cache_dtype_argument(command, arguments);
  add_weight_arguments(command, arguments);
  command.add_option("--kernels", arguments.kernels,
                     fmt::format("kernel table: {} (default: the best of this machine)",
                                 fmt::join(cpu_kernel_names(), ", ")));
  command
      .add_option("--threads", arguments.threads,
                  "compute threads (0: one per core that this process may use)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command.add_option("--cpus", arguments.cpus,
                     "processors to run on and to pin threads to, as 0-31,64 (default: all)");
  command
      .add_option(
          "--numa", arguments.numa,
          "memory nodes: auto (each keeps its rows of the weights), off, or a list to run on")
      ->capture_default_str();
}

void add_cache_dtype_argument(CLI::App& command, ModelArguments& arguments) {
  command
      .add_option(
          "--kv-cache-dtype", arguments.kv_cache_dtype,
          "what the KV cache holds: auto (as --dtype says), bfloat16, float32, or int8 (half "
          "of bfloat16, with a scale for every head of a token)")
      ->capture_default_str();
}

Result<std::unique_ptr<Device>> open_device(const ModelArguments& arguments) {
  DeviceOptions options;
  options.thread_count = arguments.threads;
  options.kernels = arguments.kernels;
  options.cpus = arguments.cpus;
  options.numa = arguments.numa;
  options.compute = arguments.dtype == "float32" ? ComputeType::kFloat32 : ComputeType::kBFloat16;
  ASSIGN_OR_RETURN(options.weights, weight_target(arguments));
  ASSIGN_OR_RETURN(options.cache, parse_cache_dtype(arguments.kv_cache_dtype));
  return open_cpu_device(options);
}

Result<OpenModel> open_model(const ModelArguments& arguments, bool next_token_module) {
  OpenModel open;
  ASSIGN_OR_RETURN(open.device, open_device(arguments));
  BundleOptions options;
  options.progress = progress_line(arguments.quiet);
  options.next_token_module = next_token_module;
  options.latent_by_shape = arguments.latent_form == "by-shape";
  ASSIGN_OR_RETURN(options.packed_cache_folder, packed_cache_folder(arguments));
  ASSIGN_OR_RETURN(open.bundle, load_bundle(arguments.model, *open.device, options));
  return open;
}

Result<std::string> read_text(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return not_found(fmt::format("cannot open {}", path));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  std::array<char, 1 << 16> chunk;
  while (in.read(chunk.data(), chunk.size()) || in.gcount() > 0) {
    text.append(chunk.data(), static_cast<std::size_t>(in.gcount()));
    if (text.size() > kTextBytesMax) {
      return invalid_argument(fmt::format("{} holds more than 1 GiB of text", path));
    }
  }
  if (in.bad()) {  // a folder, for one, opens and cannot be read
    return invalid_argument(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  }
  return text;
}

}  // namespace kun
