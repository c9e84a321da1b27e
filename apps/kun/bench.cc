// kun bench: latency, throughput, serve, kernels, tokenizer.
#include <iostream>

#include "backends/cpu/cpu_device.h"
#include "bench_offline.h"
#include "bench_serve.h"
#include "bench_tokenizer.h"
#include "cli.h"
#include "kernel_bench.h"

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
                  "size of the KV cache, as 4GiB (0: a share of free memory)")
      ->transform(CLI::AsSizeValue(false));
  command.add_option("--speculative-config", arguments.speculative_config,
                     "as of kun serve; {\"method\":\"random\",...} shows what wrong drafts cost");
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

void add_serve(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand("serve", "Streaming clients against a running server");
  auto arguments = std::make_shared<ServeBenchArguments>();
  command->add_option("--url", arguments->url, "the server")->capture_default_str();
  command->add_option("--model", arguments->model, "model name (default: the server's first)");
  command->add_option("--api-key", arguments->api_key, "key to send");
  command->add_option("--num-prompts", arguments->request_count, "requests in all")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--max-concurrency", arguments->concurrency, "clients at a time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--request-rate", arguments->request_rate, "arrivals per second (0: none)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--input-len", arguments->input_length, "prompt tokens of each request's own")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--prefix-len", arguments->prefix_length, "prompt tokens all requests share")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--output-len", arguments->output_length, "output tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--vocab-size", arguments->vocabulary, "prompts are random ids below this")
      ->check(CLI::Range(16, 1 << 24))
      ->capture_default_str();
  command->add_flag("--json", arguments->json, "print one JSON object");
  command->callback(
      [arguments, &action] { action = [arguments] { return run_serve_bench(*arguments); }; });
}

void add_kernels(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand("kernels", "Kernels beside this machine's roofline");
  auto options = std::make_shared<KernelBenchOptions>();
  command->add_option("--kernels", options->kernels, "kernel table (default: the best)")
      ->check(CLI::IsMember(cpu_kernel_names()));
  command->add_option("--threads", options->thread_count, "compute threads (0: one per core)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object");
  command->add_option("--svg", options->svg, "draw all rows under the roofline into this file");
  command->add_option("--filter", options->filter, "only rows whose name contains this");
  command->callback(
      [options, &action] { action = [options] { return run_kernel_bench(*options, std::cout); }; });
}

void add_tokenizer(CLI::App& bench, Action& action) {
  auto* command = bench.add_subcommand("tokenizer", "Encoding speed, on one thread");
  auto arguments = std::make_shared<TokenizerBenchArguments>();
  command
      ->add_option("model", arguments->model,
                   "GGUF file, Hugging Face folder or the name of a pulled model")
      ->required();
  command->add_option("files", arguments->files, "texts to encode")->required();
  command->callback(
      [arguments, &action] { action = [arguments] { return run_tokenizer_bench(*arguments); }; });
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("bench", "Measure latency, throughput, a server, kernels, tokenizing");
  command->require_subcommand(1);
  add_latency(*command, action);
  add_throughput(*command, action);
  add_serve(*command, action);
  add_kernels(*command, action);
  add_tokenizer(*command, action);
}

}  // namespace kun
