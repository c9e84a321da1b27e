#include "bench_offline.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "runtime/engine_setup.h"
#include "stream_reader.h"

namespace kun {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

GenerateRequest random_request(std::mt19937& random, int vocabulary, int input_length,
                               int output_length) {
  std::uniform_int_distribution<Token> token(0, vocabulary - 1);
  GenerateRequest request;
  for (int i = 0; i < input_length; ++i) request.prompt.push_back(token(random));
  request.output_count_max = output_length;
  request.ignore_end_tokens = true;
  request.sampling.temperature = 0.0F;
  return request;
}

// What one batch of sequences that started together did.
struct BatchTimes {
  double prefill_seconds = 0.0;    // until every sequence has its first token
  double decode_seconds = 0.0;     // from there to the end
  std::int64_t decoded_count = 0;  // tokens after that moment
};

Result<BatchTimes> time_batch(Engine& engine, std::vector<GenerateRequest> requests) {
  StreamWaiter waiter;
  std::vector<std::shared_ptr<TokenStream>> streams;
  const Clock::time_point start = Clock::now();
  for (GenerateRequest& request : requests) {
    streams.push_back(engine.generate(std::move(request)));
    waiter.watch(*streams.back());
  }
  std::vector<std::int64_t> counts(streams.size(), 0);
  std::size_t running = streams.size();
  std::int64_t total = 0;
  std::int64_t total_at_first = 0;
  Clock::time_point all_have_first;
  bool prefilling = true;
  while (running > 0) {
    waiter.wait();
    for (std::size_t i = 0; i < streams.size(); ++i) {
      while (const auto event = streams[i]->poll()) {
        if (!event->status.ok()) return event->status;
        counts[i] += std::ssize(event->tokens);
        total += std::ssize(event->tokens);
        if (event->finish) --running;
      }
    }
    if (prefilling && std::ranges::all_of(counts, [](std::int64_t n) { return n > 0; })) {
      prefilling = false;
      all_have_first = Clock::now();
      total_at_first = total;
    }
  }
  const Clock::time_point end = Clock::now();
  return BatchTimes{seconds_between(start, all_have_first), seconds_between(all_have_first, end),
                    total - total_at_first};
}

struct BenchEngine {
  OpenModel open;
  EngineSetup setup;
};

Result<BenchEngine> open_engine(const OfflineBenchArguments& arguments, int running_max) {
  BenchEngine bench;
  ASSIGN_OR_RETURN(bench.open, open_model(arguments.model,
                                          needs_next_token_module(arguments.speculative_config)));
  EngineSettings settings;
  settings.kv_cache_bytes = arguments.kv_cache_bytes;
  settings.sequences_running_max = running_max;
  settings.sequences_waiting_max = std::max(arguments.request_count, arguments.batch_size);
  settings.prefix_caching = false;     // every prompt is to be computed
  settings.decode_slowdown_max = 0.0;  // nobody reads: prompts need not wait for streams
  ASSIGN_OR_RETURN(settings.speculator, load_speculator(arguments.speculative_config,
                                                        *bench.open.bundle, *bench.open.device));
  ASSIGN_OR_RETURN(bench.setup,
                   make_engine(*bench.open.bundle, bench.open.device->ops(), settings));
  return bench;
}

// What drafts did since `before`; empty where nobody drafts.
std::string describe_drafts(const EngineStats& before, const EngineStats& after, bool json) {
  if (after.accepted_by_position.empty()) return {};
  const auto steps = after.step_count - before.step_count;
  const auto drafted = after.draft_token_count - before.draft_token_count;
  const auto accepted = after.accepted_token_count - before.accepted_token_count;
  if (json) {
    return fmt::format(",\"steps\":{},\"draft_tokens\":{},\"accepted_tokens\":{}", steps, drafted,
                       accepted);
  }
  const double share =
      drafted > 0 ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0;
  return fmt::format("drafts  {:10} in {} steps, {:.1f} % right\n", drafted, steps, 100 * share);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

Status run_latency_bench(const OfflineBenchArguments& arguments) {
  ASSIGN_OR_RETURN(const BenchEngine bench, open_engine(arguments, arguments.batch_size));
  std::mt19937 random(1);
  const auto batch = [&](int input_length, int output_length) {
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < arguments.batch_size; ++i) {
      requests.push_back(
          random_request(random, bench.open.bundle->vocabulary_limit, input_length, output_length));
    }
    return time_batch(*bench.setup.engine, std::move(requests));
  };
  // The first use of weights and buffers is not what anybody wants to know.
  ASSIGN_OR_RETURN(const BatchTimes warm_up, batch(std::min(arguments.input_length, 64), 2));
  static_cast<void>(warm_up);

  const EngineStats before = bench.setup.engine->stats();
  std::vector<double> prefill_rates;
  std::vector<double> decode_rates;
  for (int i = 0; i < arguments.repeat_count; ++i) {
    ASSIGN_OR_RETURN(const BatchTimes times,
                     batch(arguments.input_length, arguments.output_length));
    prefill_rates.push_back(arguments.input_length * arguments.batch_size / times.prefill_seconds);
    decode_rates.push_back(times.decode_seconds > 0.0
                               ? static_cast<double>(times.decoded_count) / times.decode_seconds
                               : 0.0);
  }
  const double prefill = median(prefill_rates);
  const double decode = median(decode_rates);
  const std::string drafts = describe_drafts(before, bench.setup.engine->stats(), arguments.json);
  if (arguments.json) {
    fmt::print(
        "{{\"model\":\"{}\",\"device\":\"{}\",\"input_len\":{},\"output_len\":{},"
        "\"batch_size\":{},\"prefill_tokens_per_s\":{:.2f},\"decode_tokens_per_s\":{:.2f},"
        "\"time_to_first_token_ms\":{:.3f},\"time_per_output_token_ms\":{:.3f}{}}}\n",
        bench.open.bundle->name, bench.open.device->description(), arguments.input_length,
        arguments.output_length, arguments.batch_size, prefill, decode,
        1e3 * arguments.input_length * arguments.batch_size / prefill,
        decode > 0.0 ? 1e3 * arguments.batch_size / decode : 0.0, drafts);
    return {};
  }
  fmt::print("{} on {}\n", bench.open.bundle->name, bench.open.device->description());
  fmt::print("{} users, prompt {}, output {}\n", arguments.batch_size, arguments.input_length,
             arguments.output_length);
  fmt::print("prefill {:10.1f} tokens/s\ndecode  {:10.1f} tokens/s in all, {:.1f} each\n", prefill,
             decode, decode / arguments.batch_size);
  fmt::print("{}", drafts);
  return {};
}

Status run_throughput_bench(const OfflineBenchArguments& arguments) {
  ASSIGN_OR_RETURN(const BenchEngine bench, open_engine(arguments, arguments.running_max));
  std::mt19937 random(1);
  std::vector<GenerateRequest> requests;
  std::int64_t prompt_count = 0;
  std::int64_t output_count = 0;
  for (int i = 0; i < arguments.request_count; ++i) {
    requests.push_back(random_request(random, bench.open.bundle->vocabulary_limit,
                                      arguments.input_length, arguments.output_length));
    prompt_count += arguments.input_length;
    output_count += arguments.output_length;
  }
  ASSIGN_OR_RETURN(const BatchTimes times, time_batch(*bench.setup.engine, std::move(requests)));
  const double seconds = times.prefill_seconds + times.decode_seconds;
  if (arguments.json) {
    fmt::print(
        "{{\"model\":\"{}\",\"requests\":{},\"input_len\":{},\"output_len\":{},"
        "\"seconds\":{:.3f},\"requests_per_s\":{:.3f},\"output_tokens_per_s\":{:.2f},"
        "\"total_tokens_per_s\":{:.2f}}}\n",
        bench.open.bundle->name, arguments.request_count, arguments.input_length,
        arguments.output_length, seconds, arguments.request_count / seconds,
        static_cast<double>(output_count) / seconds,
        static_cast<double>(prompt_count + output_count) / seconds);
    return {};
  }
  fmt::print("{} requests, prompt {}, output {}: {:.2f} s\n", arguments.request_count,
             arguments.input_length, arguments.output_length, seconds);
  fmt::print("output {:10.1f} tokens/s\ntotal  {:10.1f} tokens/s\n",
             static_cast<double>(output_count) / seconds,
             static_cast<double>(prompt_count + output_count) / seconds);
  return {};
}

}  // namespace kun
