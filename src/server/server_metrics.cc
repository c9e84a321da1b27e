#include "server/server_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <cmath>
#include <vector>

#include "server/process_metrics.h"
#include "server/tenant_metrics.h"

namespace kun {
namespace {

using prometheus::ClientMetric;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = Histogram::BucketBoundaries;

// The buckets of vLLM's histograms of the same names (vllm/v1/metrics/loggers.py).
const Buckets kFirstTokenBuckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                    1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
const Buckets kTokenBuckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                               .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
const Buckets kRequestBuckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
const Buckets kChoiceCountBuckets = {1, 2, 5, 10, 20};
const Buckets kHttpBuckets = {.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120};

// 1, 2, 5, 10, 20, 50 ... up to the largest that a request can reach.
Buckets one_two_five(int max) {
  Buckets buckets;
  for (double decade = 1; decade <= max; decade *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit * decade <= max) buckets.push_back(digit * decade);
    }
  }
  return buckets;
}

MetricFamily single(std::string name, std::string help, MetricType type, const Labels& labels,
                    double value) {
  ClientMetric metric;
  for (const auto& [key, text] : labels) metric.label.push_back({key, text});
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return {std::move(name), std::move(help), type, {std::move(metric)}};
}

MetricFamily step_tokens(const EngineStats& stats, const Labels& labels) {
  ClientMetric metric;
  for (const auto& [key, text] : labels) metric.label.push_back({key, text});
  std::uint64_t cumulative = 0;
  for (std::size_t i = 0; i < kStepTokenBounds.size(); ++i) {
    if (i < stats.step_token_buckets.size()) cumulative += stats.step_token_buckets[i];
    metric.histogram.bucket.push_back({cumulative, static_cast<double>(kStepTokenBounds[i])});
  }
  metric.histogram.bucket.push_back({stats.step_count, INFINITY});
  metric.histogram.sample_count = stats.step_count;
  metric.histogram.sample_sum = static_cast<double>(stats.step_token_sum);
  return {"vllm:iteration_tokens_total",
          "Histogram of number of tokens per engine step.",
          MetricType::Histogram,
          {std::move(metric)}};
}

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kTimeout: return "timeout";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kError: return "error";
  }
  return "error";
}

constexpr std::size_t kReasonCount = 5;

}  // namespace

struct ServerMetrics::Impl {
  // Exist from set_model() on, which happens once; `has_model` publishes them.
  struct ModelMetrics {
    Labels labels;
    Histogram* first_token = nullptr;
    Histogram* inter_token = nullptr;
    Histogram* per_output_token = nullptr;
    Histogram* total = nullptr;
    Histogram* queue = nullptr;
    Histogram* inference = nullptr;
    Histogram* prefill = nullptr;
    Histogram* decode = nullptr;
    Histogram* prompt_count = nullptr;
    Histogram* output_count = nullptr;
    Histogram* computed_count = nullptr;
    Histogram* longest = nullptr;
    Histogram* output_count_max = nullptr;
    Histogram* choice_count = nullptr;
    std::array<prometheus::Counter*, kReasonCount> finished{};
  };

  Histogram& histogram(const char* name, const char* help, const Labels& labels,
                       const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }

  void add_engine(std::vector<MetricFamily>& families, const EngineStats& stats) const;
  void add_drafts(std::vector<MetricFamily>& families, const EngineStats& stats) const;

  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& http_requests =
      prometheus::BuildCounter()
          .Name("http_requests_total")
          .Help("Requests by handler, method and status.")
          .Register(registry);
  prometheus::Family<Histogram>& http_seconds =
      prometheus::BuildHistogram()
          .Name("http_request_duration_seconds")
          .Help("Time from a request's head to the end of its answer.")
          .Register(registry);
  ModelMetrics model;
  std::atomic<bool> has_model = false;
};

ServerMetrics::ServerMetrics() : impl_(std::make_unique<Impl>()) {}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::set_model(const ServedModel& served) {
  Impl& impl = *impl_;
  Impl::ModelMetrics& m = impl.model;
  m.labels = {{"model_name", served.names.front()}, {"engine", "0"}};
  const auto add = [&](const char* name, const char* help, const Buckets& buckets) {
    return &impl.histogram(name, help, m.labels, buckets);
  };
  m.first_token = add("vllm:time_to_first_token_seconds",
                      "Histogram of time to first token in seconds.", kFirstTokenBuckets);
  m.inter_token = add("vllm:inter_token_latency_seconds",
                      "Histogram of inter-token latency in seconds.", kTokenBuckets);
  m.per_output_token =
      add("vllm:request_time_per_output_token_seconds",
          "Histogram of time per output token of a request in seconds.", kTokenBuckets);
  m.total = add("vllm:e2e_request_latency_seconds",
                "Histogram of end to end request latency in seconds.", kRequestBuckets);
  m.queue = add("vllm:request_queue_time_seconds",
                "Histogram of time spent waiting to run in seconds.", kRequestBuckets);
  m.inference = add("vllm:request_inference_time_seconds",
                    "Histogram of time spent running a request in seconds.", kRequestBuckets);
  m.prefill = add("vllm:request_prefill_time_seconds",
                  "Histogram of time spent computing a prompt in seconds.", kRequestBuckets);
  m.decode = add("vllm:request_decode_time_seconds",
                 "Histogram of time spent decoding a request in seconds.", kRequestBuckets);
  const Buckets counts = one_two_five(served.context_length);
  m.prompt_count = add("vllm:request_prompt_tokens", "Number of prefill tokens processed.", counts);
  m.output_count =
      add("vllm:request_generation_tokens", "Number of generation tokens processed.", counts);
  m.computed_count = add("vllm:request_prefill_kv_computed_tokens",
                         "Histogram of prompt tokens computed, not cached.", counts);
  m.longest = add("vllm:request_max_num_generation_tokens",
                  "Histogram of generation tokens of a request's longest choice.", counts);
  m.output_count_max = add("vllm:request_params_max_tokens",
                           "Histogram of the max_tokens request parameter.", counts);
  m.choice_count =
      add("vllm:request_params_n", "Histogram of the n request parameter.", kChoiceCountBuckets);
  auto& finished = prometheus::BuildCounter()
                       .Name("vllm:request_success_total")
                       .Help("Count of finished requests by reason.")
                       .Register(impl.registry);
  for (std::size_t i = 0; i < kReasonCount; ++i) {
    Labels labels = m.labels;
    labels["finished_reason"] = reason_name(static_cast<FinishReason>(i));
    m.finished[i] = &finished.Add(labels);
  }
  Labels config = {{"engine", "0"}};
  for (const auto& [key, value] : served.cache_config) config[key] = value;
  prometheus::BuildGauge()
      .Name("vllm:cache_config_info")
      .Help("Information of the KV cache configuration.")
      .Register(impl.registry)
      .Add(config)
      .Set(1.0);
  impl.has_model.store(true, std::memory_order_release);
}

void ServerMetrics::request_admitted(int choice_count, int output_count_max) {
  if (!impl_->has_model.load(std::memory_order_acquire)) return;
  impl_->model.choice_count->Observe(choice_count);
  impl_->model.output_count_max->Observe(output_count_max);
}

void ServerMetrics::request_finished(int output_count) {
  if (!impl_->has_model.load(std::memory_order_acquire)) return;
  impl_->model.longest->Observe(output_count);
}

void ServerMetrics::first_token(double seconds) {
  if (!impl_->has_model.load(std::memory_order_acquire)) return;
  impl_->model.first_token->Observe(seconds);
}

void ServerMetrics::inter_token(double seconds) {
  if (!impl_->has_model.load(std::memory_order_acquire)) return;
  impl_->model.inter_token->Observe(seconds);
}

void ServerMetrics::choice_finished(const FinishedChoice& choice) {
  if (!impl_->has_model.load(std::memory_order_acquire)) return;
  const Impl::ModelMetrics& m = impl_->model;
  m.finished[static_cast<std::size_t>(choice.reason)]->Increment();
  m.total->Observe(choice.total_seconds);
  m.queue->Observe(choice.queue_seconds);
  m.inference->Observe(choice.prefill_seconds + choice.decode_seconds);
  m.prefill->Observe(choice.prefill_seconds);
  m.decode->Observe(choice.decode_seconds);
  m.prompt_count->Observe(choice.prompt_count);
  m.computed_count->Observe(choice.prompt_count - choice.cached_count);
  m.output_count->Observe(choice.output_count);
  if (choice.output_count > 1) {
    m.per_output_token->Observe(choice.decode_seconds / (choice.output_count - 1));
  }
}

void ServerMetrics::answered(std::string_view route, std::string_view method, int status,
                             double seconds) {
  const std::string handler(route);
  const std::string verb(method);
  impl_->http_requests
      .Add({{"handler", handler}, {"method", verb}, {"status", std::to_string(status)}})
      .Increment();
  impl_->http_seconds.Add({{"handler", handler}, {"method", verb}}, kHttpBuckets).Observe(seconds);
}

void ServerMetrics::Impl::add_engine(std::vector<MetricFamily>& families,
                                     const EngineStats& stats) const {
  const auto gauge = [&](const char* name, const char* help, double value) {
    families.push_back(single(name, help, MetricType::Gauge, model.labels, value));
  };
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    families.push_back(
        single(name, help, MetricType::Counter, model.labels, static_cast<double>(value)));
  };
  gauge("vllm:num_requests_running", "Number of requests in model execution batches.",
        stats.running_count);
  gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.",
        stats.waiting_count);
  gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.",
        stats.cache_usage);
  counter("vllm:prompt_tokens_total", "Number of prefill tokens processed.",
          stats.prompt_token_count);
  counter("vllm:generation_tokens_total", "Number of generation tokens processed.",
          stats.generated_token_count);
  counter("vllm:prompt_tokens_cached_total", "Number of prompt tokens found in the cache.",
          stats.prefix_hit_token_count);
  counter("vllm:prefix_cache_queries_total", "Prefix cache queries, in tokens.",
          stats.prefix_query_token_count);
  counter("vllm:prefix_cache_hits_total", "Prefix cache hits, in tokens.",
          stats.prefix_hit_token_count);
  counter("vllm:num_preemptions_total", "Cumulative number of preemptions.",
          stats.preemption_count);
  counter("kun:late_requests_total", "Choices dropped or ended because of deadlines.",
          stats.late_count);
  counter("vllm:corrupted_requests_total", "Requests with logits that were not finite.",
          stats.corrupted_count);
  if (!stats.accepted_by_position.empty()) add_drafts(families, stats);
  families.push_back(step_tokens(stats, model.labels));
  MetricFamily by_source = {"vllm:prompt_tokens_by_source_total",
                            "Prompt tokens by where they came from.",
                            MetricType::Counter,
                            {}};
  for (const auto& [source, value] : {std::pair{"local_compute", stats.computed_prompt_token_count},
                                      std::pair{"local_cache_hit", stats.prefix_hit_token_count}}) {
    Labels labels = model.labels;
    labels["source"] = source;
    by_source.metric.push_back(
        single("", "", MetricType::Counter, labels, static_cast<double>(value)).metric.front());
  }
  families.push_back(std::move(by_source));
}

// Only with speculation, as in vLLM.
void ServerMetrics::Impl::add_drafts(std::vector<MetricFamily>& families,
                                     const EngineStats& stats) const {
  const auto counter = [&](const char* name, const char* help, std::uint64_t value) {
    families.push_back(
        single(name, help, MetricType::Counter, model.labels, static_cast<double>(value)));
  };
  counter("vllm:spec_decode_num_drafts_total", "Number of spec decoding drafts.",
          stats.draft_count);
  counter("vllm:spec_decode_num_draft_tokens_total", "Number of draft tokens.",
          stats.draft_token_count);
  counter("vllm:spec_decode_num_accepted_tokens_total", "Number of accepted tokens.",
          stats.accepted_token_count);
  MetricFamily by_position = {"vllm:spec_decode_num_accepted_tokens_per_pos_total",
                              "Accepted tokens per draft position.",
                              MetricType::Counter,
                              {}};
  for (std::size_t i = 0; i < stats.accepted_by_position.size(); ++i) {
    Labels labels = model.labels;
    labels["position"] = std::to_string(i);
    by_position.metric.push_back(single("", "", MetricType::Counter, labels,
                                        static_cast<double>(stats.accepted_by_position[i]))
                                     .metric.front());
  }
  families.push_back(std::move(by_position));
}

std::string ServerMetrics::page(const EngineStats* stats) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  if (stats != nullptr && impl_->has_model.load(std::memory_order_acquire)) {
    impl_->add_engine(families, *stats);
  }
  const ProcessFigures process = read_process_figures();
  const auto add = [&](const char* name, const char* help, MetricType type, double value) {
    families.push_back(single(name, help, type, {}, value));
  };
  add("process_cpu_seconds_total", "Processor time used, in seconds.", MetricType::Counter,
      process.cpu_seconds);
  add("process_resident_memory_bytes", "Resident memory, in bytes.", MetricType::Gauge,
      process.resident_bytes);
  add("process_virtual_memory_bytes", "Virtual memory, in bytes.", MetricType::Gauge,
      process.virtual_bytes);
  add("process_start_time_seconds", "Start of the process, in seconds since 1970.",
      MetricType::Gauge, process.start_seconds);
  add("process_open_fds", "Open file descriptors.", MetricType::Gauge, process.open_files);
  add("process_max_fds", "File descriptors that may be open.", MetricType::Gauge,
      process.open_files_max);
  std::string text = prometheus::TextSerializer().Serialize(families);
  if (stats != nullptr && impl_->has_model.load(std::memory_order_acquire)) {
    text += tenant_metrics(stats->tenants, impl_->model.labels.at("model_name"));
  }
  return text;
}

}  // namespace kun
