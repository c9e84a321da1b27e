#include "bench_serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "hub/http_fetch.h"

namespace kun {
namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - start).count();
}

// What the requests of all threads measured.
struct Samples {
  std::mutex mutex;
  std::vector<double> first_token_ms;
  std::vector<double> gap_ms;
  std::int64_t output_count = 0;
  int failed_count = 0;
  Status first_failure;
};

struct Summary {
  double mean = 0.0;
  double median = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};

Summary summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&values](double share) {
    return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size()),
          at(0.5), at(0.99), values.back()};
}

// The lines of a server-sent event stream that carry a token, with the time they came.
class TokenTimes {
 public:
  void feed(std::string_view bytes) {
    for (const char c : bytes) {
      if (c != '\n') {
        line_ += c;
        continue;
      }
      if (line_.starts_with("data: {") && line_.find("\"choices\":[{") != std::string::npos) {
        times_.push_back(Clock::now());
      }
      line_.clear();
    }
  }

  const std::vector<Clock::time_point>& times() const { return times_; }

 private:
  std::string line_;
  std::vector<Clock::time_point> times_;
};

std::string request_body(const ServeBenchArguments& arguments, const std::string& model,
                         unsigned number) {
  std::mt19937 prefix_random(1);
  std::mt19937 random(1000 + number);
  std::uniform_int_distribution<int> token(10, arguments.vocabulary - 1);
  std::string ids;
  for (int i = 0; i < arguments.prefix_length + arguments.input_length; ++i) {
    const int id = i < arguments.prefix_length ? token(prefix_random) : token(random);
    ids += fmt::format("{}{}", i == 0 ? "" : ",", id);
  }
  return fmt::format(
      "{{\"model\":\"{}\",\"prompt\":[{}],\"max_tokens\":{},\"temperature\":0,"
      "\"ignore_eos\":true,\"stream\":true}}",
      model, ids, arguments.output_length);
}

void record(Samples& samples, Clock::time_point start,
            const std::vector<Clock::time_point>& times) {
  const std::lock_guard lock(samples.mutex);
  samples.first_token_ms.push_back(ms_between(start, times.front()));
  for (std::size_t i = 1; i < times.size(); ++i) {
    samples.gap_ms.push_back(ms_between(times[i - 1], times[i]));
  }
}

void run_request(const ServeBenchArguments& arguments, const std::string& model, unsigned number,
                 Samples& samples) {
  HttpFetch fetch;
  fetch.url = arguments.url + "/v1/completions";
  fetch.token = arguments.api_key;
  fetch.json_body = request_body(arguments, model, number);
  fetch.stall_seconds = 600.0;
  TokenTimes tokens;
  const Clock::time_point start = Clock::now();
  const auto reply = http_fetch(fetch, [&tokens](const HttpReply&, std::string_view piece) {
    tokens.feed(piece);
    return Status();
  });
  const bool ok = reply && reply->status == 200 && !tokens.times().empty();
  if (ok) {
    record(samples, start, tokens.times());
    const std::lock_guard lock(samples.mutex);
    samples.output_count += arguments.output_length;
    return;
  }
  const std::lock_guard lock(samples.mutex);
  ++samples.failed_count;
  if (!samples.first_failure.ok()) return;
  samples.first_failure =
      reply ? unavailable(fmt::format("the server answered {}", reply->status)) : reply.error();
}

// The first "id" of /v1/models.
Result<std::string> first_model(const ServeBenchArguments& arguments) {
  HttpFetch fetch;
  fetch.url = arguments.url + "/v1/models";
  fetch.token = arguments.api_key;
  std::string page;
  ASSIGN_OR_RETURN(const HttpReply reply,
                   http_fetch(fetch, [&page](const HttpReply&, std::string_view piece) {
                     page += piece;
                     return Status();
                   }));
  const std::string mark = "\"id\":\"";
  const std::size_t start = page.find(mark);
  const std::size_t end = start == std::string::npos ? start : page.find('"', start + mark.size());
  if (reply.status != 200 || end == std::string::npos) {
    return unavailable(fmt::format("{} names no model (status {})", fetch.url, reply.status));
  }
  return page.substr(start + mark.size(), end - start - mark.size());
}

void print(const ServeBenchArguments& arguments, const Samples& samples, double seconds) {
  const Summary first = summarize(samples.first_token_ms);
  const Summary gap = summarize(samples.gap_ms);
  const double rate = static_cast<double>(samples.output_count) / seconds;
  if (arguments.json) {
    fmt::print(
        "{{\"completed\":{},\"failed\":{},\"duration_s\":{:.3f},\"output_tokens_per_s\":{:.2f},"
        "\"mean_ttft_ms\":{:.2f},\"median_ttft_ms\":{:.2f},\"p99_ttft_ms\":{:.2f},"
        "\"mean_itl_ms\":{:.2f},\"median_itl_ms\":{:.2f},\"p99_itl_ms\":{:.2f},"
        "\"max_itl_ms\":{:.2f}}}\n",
        samples.first_token_ms.size(), samples.failed_count, seconds, rate, first.mean,
        first.median, first.p99, gap.mean, gap.median, gap.p99, gap.max);
    return;
  }
  fmt::print("{} requests answered, {} failed, {:.2f} s\n", samples.first_token_ms.size(),
             samples.failed_count, seconds);
  fmt::print("output               {:10.1f} tokens/s\n", rate);
  fmt::print("                           mean     median        p99        max\n");
  fmt::print("time to first token  {:10.1f} {:10.1f} {:10.1f} {:10.1f} ms\n", first.mean,
             first.median, first.p99, first.max);
  fmt::print("inter-token latency  {:10.1f} {:10.1f} {:10.1f} {:10.1f} ms\n", gap.mean, gap.median,
             gap.p99, gap.max);
}

}  // namespace

Status run_serve_bench(const ServeBenchArguments& arguments) {
  std::string model = arguments.model;
  if (model.empty()) {
    ASSIGN_OR_RETURN(model, first_model(arguments));
  }
  Samples samples;
  std::atomic<int> next = 0;
  const Clock::time_point start = Clock::now();
  const auto work = [&] {
    while (true) {
      const int number = next.fetch_add(1);
      if (number >= arguments.request_count) return;
      if (arguments.request_rate > 0.0) {
        std::this_thread::sleep_until(
            start + std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(number / arguments.request_rate)));
      }
      run_request(arguments, model, static_cast<unsigned>(number), samples);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < arguments.concurrency; ++i) threads.emplace_back(work);
  }
  print(arguments, samples, ms_between(start, Clock::now()) / 1e3);
  return samples.first_failure;
}

}  // namespace kun
