// kun bench: latency, throughput, serve, kernels.
#include "bench_offline.h"
#include "cli.h"

namespace kun {
namespace {

void add_lengths(CLI::App& command, OfflineBenchArguments& arguments) {
  add_model_arguments(command, arguments.model);
  command.add_option("--input-len", arguments.input_length, "prompt tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--output-len", arguments.output_length, "output tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--kv-cache-memory-bytes", arguments.kv_cache_bytes,
                  "size of the KV cache (0: a share of free memory)")
      ->check(CLI::NonNegativeNumber);
  command.add_flag("--json", arguments.json, "print one JSON object");
}

void add_latency(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand("latency", "One batch of equal sequences");
  auto arguments = std::make_shared<OfflineBenchArguments>();
  add_lengths(*command, *arguments);
  command->add_option("--batch-size", arguments->batch_size, "sequences that start together")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--repeat", arguments->repeat_count, "runs; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->callback(
      [arguments, &action] { action = [arguments] { return run_latency_bench(*arguments); }; });
}

void add_throughput(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand("throughput", "Many sequences, as fast as they go");
  auto arguments = std::make_shared<OfflineBenchArguments>();
  add_lengths(*command, *arguments);
  command->add_option("--num-prompts", arguments->request_count, "sequences in all")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-num-seqs", arguments->running_max, "sequences in one step at most")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->callback(
      [arguments, &action] { action = [arguments] { return run_throughput_bench(*arguments); }; });
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("bench", "Measure latency, throughput, a server, kernels");
  command->require_subcommand(1);
  add_latency(*command, action);
  add_throughput(*command, action);
}

}  // namespace kun
