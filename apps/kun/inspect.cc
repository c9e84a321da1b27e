// kun inspect: what is in a checkpoint, and what serving it will need.
#include <fmt/format.h>

#include <array>
#include <map>
#include <utility>

#include "backends/cpu/cpu_device.h"
#include "cli.h"
#include "predict.h"
#include "runtime/weight_plan.h"

namespace kun {
namespace {

struct Arguments {
  std::string model;
  int context = 4096;
  int users = 16;
  bool tensors = false;
  bool predict = false;
  int prompt = 512;
  ModelArguments device;  // its options, not its model
};

constexpr double kMib = 1024.0 * 1024.0;

struct Totals {
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;
};

void print_formats(const std::vector<StoredTensor>& tensors) {
  std::map<std::string, Totals> by_format;
  Totals all;
  for (const StoredTensor& tensor : tensors) {
    std::int64_t parameters = 1;
    for (const std::int64_t dim : tensor.shape) parameters *= dim;
    for (Totals* totals : {&by_format[tensor.format], &all}) {
      totals->parameters += parameters;
      totals->bytes += tensor.bytes;
    }
  }
  fmt::print("parameters     {:.1f} M in {} tensors, {:.1f} MiB\n",
             static_cast<double>(all.parameters) / 1e6, tensors.size(),
             static_cast<double>(all.bytes) / kMib);
  for (const auto& [format, totals] : by_format) {
    fmt::print("  {:12} {:10.1f} M {:10.1f} MiB\n", format,
               static_cast<double>(totals.parameters) / 1e6,
               static_cast<double>(totals.bytes) / kMib);
  }
}

Status print_memory_plan(const Checkpoint& checkpoint, const Arguments& arguments) {
  ConfigReader read(checkpoint.config());
  int layers = 0;
  int heads = 1;
  int kv_heads = 1;
  int hidden = 0;
  int head_width = 0;
  read.read("num_hidden_layers", layers, 1, 4096);
  read.read("num_attention_heads", heads, 1, 65536);
  read.read_or("num_key_value_heads", kv_heads, heads, 1, 65536);
  read.read("hidden_size", hidden, 1, 1 << 24);
  read.read_or("head_dim", head_width, hidden / heads, 1, 65536);
  RETURN_IF_ERROR(read.status());
  const std::int64_t token_bytes =
      std::int64_t{layers} * 2 * kv_heads * head_width * size_bytes(DType::kBF16);
  fmt::print("KV cache       {:.1f} KiB a token (bfloat16); {} users with {} tokens: {:.1f} MiB\n",
             static_cast<double>(token_bytes) / 1024.0, arguments.users, arguments.context,
             static_cast<double>(token_bytes) * arguments.users * arguments.context / kMib);
  return {};
}

// A row for each form that weights may take: what they need, and what bounds a token's time.
Status print_weight_plans(const Checkpoint& checkpoint, const Arguments& arguments) {
  constexpr std::array<std::pair<const char*, WeightTarget>, 5> kTargets{
      {{"auto", WeightTarget::kAuto},
       {"as-stored", WeightTarget::kAsStored},
       {"bf16", WeightTarget::kBF16},
       {"int8", WeightTarget::kInt8},
       {"int4", WeightTarget::kInt4}}};
  fmt::print("weights        by --weight-format: in memory, read for one token\n");
  for (const auto& [name, target] : kTargets) {
    ASSIGN_OR_RETURN(const auto device, open_cpu_device({.thread_count = 1,
                                                         .kernels = arguments.device.kernels,
                                                         .weights = target}));
    const auto planned = plan_weights(checkpoint, device->ops());
    if (!planned) {  // what can be told is still worth telling
      fmt::print("  not loadable: {}\n", planned.error().message());
      return {};
    }
    const WeightPlan& plan = *planned;
    fmt::print("  {:12} {:10.1f} MiB {:10.1f} MiB\n", name,
               static_cast<double>(plan.packed_bytes) / kMib,
               static_cast<double>(plan.token_bytes) / kMib);
    if (target != WeightTarget::kInt4) continue;
    fmt::print("  embeddings   {:10.1f} MiB mapped from the file, one row a token\n",
               static_cast<double>(plan.table_bytes) / kMib);
  }
  return {};
}

Status run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const std::string path, resolve_model(arguments.model));
  ASSIGN_OR_RETURN(const auto checkpoint, open_checkpoint(path));
  const std::vector<StoredTensor> tensors = checkpoint->tensors();
  fmt::print("path           {}\n", path);
  fmt::print("format         {}\n",
             checkpoint->kind() == CheckpointKind::kGguf ? "GGUF" : "Hugging Face");
  fmt::print("architecture   {}\n", checkpoint->config().architecture());
  print_formats(tensors);
  RETURN_IF_ERROR(print_weight_plans(*checkpoint, arguments));
  RETURN_IF_ERROR(print_memory_plan(*checkpoint, arguments));
  if (arguments.predict) {
    ASSIGN_OR_RETURN(const auto device, open_device(arguments.device));
    RETURN_IF_ERROR(print_prediction(*checkpoint, *device,
                                     {arguments.users, arguments.context, arguments.prompt}));
  }
  if (!arguments.tensors) return {};
  for (const StoredTensor& tensor : tensors) {
    fmt::print("  {:60} {:8} [{}]\n", tensor.name, tensor.format, fmt::join(tensor.shape, ", "));
  }
  return {};
}

}  // namespace

void add_inspect_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("inspect", "What is in a checkpoint and what it needs");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("model", arguments->model,
                   "GGUF file, Hugging Face folder or the name of a pulled model")
      ->required();
  command->add_option("--context", arguments->context, "tokens per user in the memory plan")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command->add_option("--users", arguments->users, "users in the memory plan")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_flag("--predict", arguments->predict,
                    "time this machine's kernels on the model's shapes and say what tokens per "
                    "second to expect from --users at --context");
  command->add_option("--prompt-len", arguments->prompt, "tokens of the prompt in the prediction")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  command->add_option("--kernels", arguments->device.kernels,
                      "kernel table of the plans and the prediction (default: the best here)");
  command->add_option("--threads", arguments->device.threads, "threads of the prediction (0: all)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--tensors", arguments->tensors, "list every tensor");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
