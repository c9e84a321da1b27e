#include "server/pooling_job.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/log.h"
#include "engine/embedding.h"
#include "server/openai_request.h"
#include "server/request_deadlines.h"
#include "server/request_memory.h"
#include "server/tenant_request.h"

namespace kun {
namespace {

// Inputs of one request that the engine has at a time: enough to fill its steps, too few to fill
// its waiting line.
constexpr std::size_t kInFlightMax = 64;

double seconds_since(std::chrono::steady_clock::time_point then) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - then).count();
}

}  // namespace

void PoolingJob::start(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                       Setup setup) {
  std::size_t token_count = 0;
  for (const std::vector<Token>& input : setup.inputs) token_count += input.size();
  const std::size_t bytes = expected_bytes_of_vectors(
      token_count, setup.inputs.size(), static_cast<std::size_t>(setup.model->hidden_size),
      setup.shows_vectors);
  std::optional<MemoryHold> memory = hold_for_request(context, exchange, bytes);
  if (!memory) return;
  const auto job =
      std::make_shared<PoolingJob>(context, exchange, std::move(setup), *std::move(memory));
  exchange->set_listener(job);
  job->run();
}

PoolingJob::PoolingJob(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                       Setup setup, MemoryHold memory)
    : context_(context),
      exchange_(exchange),
      setup_(std::move(setup)),
      arrived_(exchange->request().received),
      memory_(std::move(memory)),
      streams_(setup_.inputs.size()),
      embeddings_(setup_.inputs.size()) {}

// The exchange lets go of this now: run() must come whoever else waits in the pool's line.
void PoolingJob::on_closed() {
  context_.pool->resume([self = shared_from_this()] { self->run(); });
}

void PoolingJob::run() {
  const std::lock_guard lock(mutex_);
  try {
    run_locked();
  } catch (const std::exception& exception) {
    LOG(kError, fmt::format("embeddings were given up: {}", exception.what()));
    const std::shared_ptr<Exchange> exchange = exchange_.lock();
    done_ = true;
    streams_.clear();
    if (exchange == nullptr) return;
    respond_error(exchange, {500, "the server could not finish this answer", std::nullopt});
  }
}

void PoolingJob::run_locked() {
  *scheduled_ = false;  // events that arrive from here on are seen below, or schedule again
  if (done_) return;
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (exchange == nullptr || exchange->closed()) {
    done_ = true;
    for (std::size_t i = 0; i < begun_count_; ++i) {
      if (streams_[i] != nullptr) record(i, FinishReason::kAbort, {});
    }
    streams_.clear();  // cancels what is under way
    return;
  }
  for (std::size_t i = 0; i < begun_count_; ++i) {
    if (streams_[i] != nullptr && !take(i)) return;
  }
  while (begun_count_ < setup_.inputs.size() && begun_count_ - ended_count_ < kInFlightMax) {
    submit();
  }
  if (ended_count_ == setup_.inputs.size()) respond(*exchange);
}

void PoolingJob::submit() {
  const std::size_t input = begun_count_++;
  GenerateRequest request;
  request.prompt = setup_.inputs[input];
  request.pooling = setup_.pooling;
  request.priority = setup_.priority;
  request.cache_salt = setup_.cache_salt;
  request.deadlines = remaining(setup_.deadlines, Clock::now() - arrived_);
  if (const std::shared_ptr<Exchange> exchange = exchange_.lock()) {
    give_to_tenant(request, exchange->request(), context_.options.isolate_tenants);
  }
  streams_[input] = setup_.model->generator->generate(std::move(request));
  streams_[input]->set_ready_callback(
      [weak = weak_from_this(), pool = context_.pool, scheduled = scheduled_] {
        if (scheduled->exchange(true)) return;
        pool->resume([weak] {
          if (const auto self = weak.lock()) self->run();
        });
      });
}

// False when the job is over.
bool PoolingJob::take(std::size_t input) {
  std::optional<StreamEvent> event = streams_[input]->poll();
  if (!event || !event->finish) return true;
  streams_[input].reset();
  ++ended_count_;
  record(input, *event->finish, event->usage);
  if (*event->finish == FinishReason::kStop && !event->pooled.empty()) {
    cached_count_ += event->usage.cached_count;
    embeddings_[input] =
        make_embedding(std::move(event->pooled), setup_.dimensions, setup_.normalize);
    return true;
  }
  done_ = true;
  streams_.clear();
  Status status = std::move(event->status);
  if (*event->finish == FinishReason::kTimeout) {
    status = unavailable("timeout_ms was over before all inputs were read");
  } else if (status.ok()) {
    status = unavailable("the request was cancelled by the server");
  }
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (exchange != nullptr) respond_error(exchange, error_from(status, event->refusal));
  return false;
}

void PoolingJob::record(std::size_t input, FinishReason reason, const StreamUsage& usage) {
  FinishedChoice finished;
  finished.reason = reason;
  finished.prompt_count = static_cast<int>(setup_.inputs[input].size());
  finished.cached_count = usage.cached_count;
  finished.total_seconds = seconds_since(arrived_);
  finished.queue_seconds = static_cast<double>(usage.queue_microseconds) * 1e-6;
  context_.metrics.choice_finished(finished);
}

void PoolingJob::respond(Exchange& exchange) {
  done_ = true;
  HttpResponse response;
  response.body = setup_.write(embeddings_, cached_count_);
  exchange.respond(std::move(response));
}

}  // namespace kun
