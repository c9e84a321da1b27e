// kun inspect: what is in a checkpoint, and what serving it will need.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <utility>

#include "backends/cpu/cpu_device.h"
#include "checkpoint/promised_checkpoint.h"
#include "cli.h"
#include "models/registry.h"
#include "predict.h"
#include "runtime/cache_dtype.h"

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
    for (Totals* totals : {&by_format[tensor.format], &all}) {
      totals->parameters += tensor.parameters;
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

// "latent  61 layers: 576 values a token"
void print_plane(const KvGroup& group, const KvPlane& plane) {
  std::string where = plane.positions_per_entry == 1
                          ? std::string("a token")
                          : fmt::format("every {} tokens", plane.positions_per_entry);
  if (group.window > 0) where += fmt::format(", of which the last {} are read", group.window);
  fmt::print("  {:12} {:10} layers: {} values {} ({})\n", plane.name, group.layers.size(),
             plane.width, where, name(plane.dtype));
}

// Of one user; of a window only the blocks that a token may see.
std::int64_t cache_bytes(const KvLayout& layout, int context) {
  std::int64_t bytes = 0;
  for (const KvGroup& group : layout.groups) {
    const int seen = group.window == 0 ? context : group.window + group.tokens_per_block - 1;
    bytes += KvLayout{{group}}.sequence_bytes(std::min(context, seen));
  }
  return bytes;
}

void print_cache_plan(const Checkpoint& checkpoint, const Arguments& arguments, DType dtype) {
  const auto layout = plan_kv_layout(checkpoint, dtype);
  if (!layout) {  // what can be told is still worth telling
    fmt::print("KV cache       {}\n", layout.error().message());
    return;
  }
  fmt::print("KV cache       {:.1f} KiB a token; {} users with {} tokens: {:.1f} MiB\n",
             layout->token_bytes() / 1024.0, arguments.users, arguments.context,
             static_cast<double>(cache_bytes(*layout, arguments.context)) * arguments.users / kMib);
  for (const KvGroup& group : layout->groups) {
    for (const KvPlane& plane : group.planes) print_plane(group, plane);
  }
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
  WeightPlan plan;
  for (const auto& [name, target] : kTargets) {
    ASSIGN_OR_RETURN(const auto device, open_cpu_device({.thread_count = 1,
                                                         .kernels = arguments.device.kernels,
                                                         .weights = target}));
    const auto planned = plan_weights(checkpoint, device->ops(), device->cache_dtype());
    if (!planned) {  // what can be told is still worth telling
      fmt::print("  not loadable: {}\n", planned.error().message());
      return {};
    }
    plan = *planned;
    fmt::print("  {:12} {:10.1f} MiB {:10.1f} MiB", name,
               static_cast<double>(plan.packed_bytes) / kMib,
               static_cast<double>(plan.token_bytes) / kMib);
    if (plan.module_bytes > 0) {
      fmt::print("  and {:.1f} MiB for a next-token module",
                 static_cast<double>(plan.module_bytes) / kMib);
    }
    fmt::print("\n");
  }
  fmt::print("  embeddings   {:10.1f} MiB mapped from the file, one row a token\n",
             static_cast<double>(plan.table_bytes) / kMib);
  if (plan.module_bytes == 0) return {};
  fmt::print(
      "next token     a module (MTP), loaded for --speculative-config "
      "'{{\"method\":\"mtp\",\"num_speculative_tokens\":1}}' alone\n");
  return {};
}

// A folder without weights is planned by its configuration.
Result<std::unique_ptr<Checkpoint>> open_for_plan(const std::string& path) {
  auto opened = open_checkpoint(path);
  std::error_code ignored;
  const bool promised =
      !opened && opened.error().code() == StatusCode::kNotFound &&
      std::filesystem::exists(std::filesystem::path(path) / "config.json", ignored);
  return promised ? open_promised_checkpoint(path) : std::move(opened);
}

Status run(const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto cache_dtype, parse_cache_dtype(arguments.device.kv_cache_dtype));
  ASSIGN_OR_RETURN(const std::string path, resolve_model(arguments.model));
  ASSIGN_OR_RETURN(const auto checkpoint, open_for_plan(path));
  const std::vector<StoredTensor> tensors = checkpoint->tensors();
  fmt::print("path           {}\n", path);
  const bool gguf = checkpoint->kind() == CheckpointKind::kGguf;
  const std::string_view quantization = gguf ? "" : checkpoint->quantization();
  fmt::print("format         {}{}{}\n", gguf ? "GGUF" : "Hugging Face",
             quantization.empty() ? "" : ", quantized with ", quantization);
  fmt::print("architecture   {}\n", checkpoint->config().architecture());
  if (tensors.empty()) {
    fmt::print("parameters     not here: planned as if all were stored as bfloat16\n");
  } else {
    print_formats(tensors);
  }
  RETURN_IF_ERROR(print_weight_plans(*checkpoint, arguments));
  print_cache_plan(*checkpoint, arguments, cache_dtype.value_or(DType::kBF16));
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
  add_cache_dtype_argument(*command, arguments->device);
  command->add_flag("--predict", arguments->predict,
                    "time this machine's kernels on the model's shapes and say what tokens per "
                    "second to expect from --users at --context");
  command->add_option("--prompt-len", arguments->prompt, "tokens of the prompt in the prediction")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  command
      ->add_option("--kernels", arguments->device.kernels,
                   "kernel table of the plans and the prediction (default: the best here)")
      ->check(CLI::IsMember(cpu_kernel_names()));
  command->add_option("--threads", arguments->device.threads, "threads of the prediction (0: all)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--tensors", arguments->tensors, "list every tensor");
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace kun
