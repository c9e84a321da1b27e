// What the sub-commands share: how they are declared, and the options that choose a model.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "device/device.h"
#include "runtime/model_bundle.h"

namespace kun {

// What a chosen sub-command does once the command line is parsed.
using Action = std::function<Status()>;

// Each adds its sub-command to `app`; parsing it stores its work in `action`.
void add_bench_command(CLI::App& app, Action& action);
void add_chat_command(CLI::App& app, Action& action);
void add_complete_command(CLI::App& app, Action& action);
void add_inspect_command(CLI::App& app, Action& action);
void add_logits_command(CLI::App& app, Action& action);
void add_perplexity_command(CLI::App& app, Action& action);
void add_pull_command(CLI::App& app, Action& action);
void add_run_batch_command(CLI::App& app, Action& action);
void add_serve_command(CLI::App& app, Action& action);
void add_tokenize_command(CLI::App& app, Action& action);

// Options of every command that loads a model.
struct ModelArguments {
  std::string model;
  std::string dtype = "auto";
  std::string latent_form = "absorbed";
  std::string kv_cache_dtype = "auto";
  std::string kernels;
  std::string weight_format = "auto";
  std::string quantization;  // vLLM's name for a weight format
  std::string weights_cache = "auto";
  int threads = 0;
  std::string cpus;
  std::string numa = "auto";
  bool quiet = false;
};
void add_model_arguments(CLI::App& command, ModelArguments& arguments);
void add_weight_arguments(CLI::App& command, ModelArguments& arguments);
void add_cache_dtype_argument(CLI::App& command, ModelArguments& arguments);

// A device and the model loaded onto it, the loading shown on standard error.
struct OpenModel {
  std::unique_ptr<Device> device;
  std::unique_ptr<ModelBundle> bundle;
};
Result<std::unique_ptr<Device>> open_device(const ModelArguments& arguments);
// What the weights become, of --weight-format and --quantization together.
Result<WeightTarget> weight_target(const ModelArguments& arguments);
// The folder of packed weights that --weights-cache means; empty: none.
Result<std::string> packed_cache_folder(const ModelArguments& arguments);
Result<OpenModel> open_model(const ModelArguments& arguments, bool next_token_module = false);

// The whole of a file, or of standard input for "-"; at most 1 GiB.
Result<std::string> read_text(const std::string& path);

}  // namespace kun
