// One round of the loop: take in requests, let go of what nobody reads, stop what its reader
// stopped, run a step, hand out its tokens. The thread sleeps only when there is nothing to do.
#include "engine/engine_loop.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "scheduler/plan_trace.h"

namespace kun {
namespace {

Microseconds steady_microseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

EngineOptions with_defaults(EngineOptions options) {
  if (!options.clock) options.clock = steady_microseconds;
  return options;
}

void push_end(const std::weak_ptr<TokenStream>& weak, std::uint32_t choice, FinishReason reason,
              const Status& status, const Refusal& refusal = {}) {
  const std::shared_ptr<TokenStream> stream = weak.lock();
  if (stream == nullptr) return;
  StreamEvent event;
  event.choice = choice;
  event.finish = reason;
  event.status = status;
  event.refusal = refusal;
  stream->push(std::move(event));
}

// The reason of a choice's end, with its status when it is an error.
std::pair<FinishReason, Status> reason_of(Scheduler::Finish finish, const Status& step_status) {
  switch (finish) {
    case Scheduler::Finish::kEndToken:
    case Scheduler::Finish::kConstraintEnd:
    case Scheduler::Finish::kPooled:
    case Scheduler::Finish::kStopped: return {FinishReason::kStop, {}};
    case Scheduler::Finish::kLength: return {FinishReason::kLength, {}};
    case Scheduler::Finish::kTimeout: return {FinishReason::kTimeout, {}};
    case Scheduler::Finish::kLate:
      return {FinishReason::kError,
              unavailable("the first token cannot come within ttft_slo_ms any more; it waited "
                          "behind other requests")};
    case Scheduler::Finish::kCorrupted:
      return {FinishReason::kError,
              internal_error("the model computed values that are not numbers for this request")};
    case Scheduler::Finish::kNoToken:
      return {FinishReason::kError,
              invalid_argument("the grammar and the other parameters of this request together "
                               "leave no token possible")};
    case Scheduler::Finish::kFailed:
      return {FinishReason::kError, step_status.ok()
                                        ? internal_error("a step of this request gave no result")
                                        : step_status};
    case Scheduler::Finish::kNone: break;
  }
  CHECK(false);
}

void add_pooled(const Scheduler::Progress& progress, std::vector<double>& sum) {
  sum.resize(progress.pooled.size(), 0.0);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += progress.pooled[i];
}

std::vector<float> pooled_result(Pooling pooling, const std::vector<double>& sum, int count) {
  const double scale = pooling == Pooling::kMean ? 1.0 / count : 1.0;
  std::vector<float> result;
  result.reserve(sum.size());
  for (const double value : sum) result.push_back(static_cast<float>(value * scale));
  return result;
}

}  // namespace

Engine::Loop::Loop(EngineOptions options, std::unique_ptr<Executor> executor)
    : options_(with_defaults(std::move(options))),
      watch_(options_.hang_time),
      scheduler_(options_.limits, options_.layout),
      executor_(std::move(executor)),
      masks_(options_.vocabulary_size, options_.mask_thread_count) {
  CHECK(executor_ != nullptr && options_.vocabulary_size > 0);
  stats_.step_token_buckets.resize(kStepTokenBounds.size() + 1);
  thread_ = std::thread([this] { run(); });
}

Engine::Loop::~Loop() {
  {
    const std::lock_guard lock(inbox_mutex_);
    stopping_ = true;
  }
  inbox_changed_.notify_one();
  thread_.join();
}

// --- Any thread
// -----------------------------------------------------------------------------------

std::shared_ptr<TokenStream> Engine::Loop::generate(GenerateRequest request) {
  auto stream = std::make_shared<TokenStream>();
  Status refused = check(request);
  Refusal refusal;
  if (refused.ok()) {
    const std::lock_guard lock(inbox_mutex_);
    refused = refuse_arrival(request, refusal);
    if (refused.ok()) {
      ++inbox_counts_[request.tenant];
      if (pending_count_.fetch_add(1) == 0) watch_.moved(options_.clock());
      inbox_.push_back({std::move(request), stream, options_.clock()});
    }
  }
  if (!refused.ok()) {
    push_end(stream, 0, FinishReason::kError, refused, refusal);
    return stream;
  }
  inbox_changed_.notify_one();
  return stream;
}

// What arrives while a step runs. A tenant that floods the inbox does not keep others out of it.
Status Engine::Loop::refuse_arrival(const GenerateRequest& request, Refusal& refusal) const {
  constexpr std::ptrdiff_t kTenantsMax = 8;
  if (dead_ || stopping_) return unavailable("the engine has stopped; restart the server");
  if (draining_) return unavailable("the server is shutting down and takes no new requests");
  const int most = options_.limits.sequences_waiting_max;
  const auto mine = inbox_counts_.find(request.tenant);
  if ((mine == inbox_counts_.end() || mine->second < most) &&
      std::ssize(inbox_) < kTenantsMax * most) {
    return {};
  }
  refusal = {kCodeQueueFull, admission_time_.load()};
  return resource_exhausted(
      fmt::format("{} requests are waiting already, try again later", inbox_.size()));
}

// What the scheduler cannot know: ids that name no token would be read outside of tables. The count
// of choices is bounded here already, because a request in the inbox may end before it is added.
Status Engine::Loop::check(const GenerateRequest& request) const {
  if (request.choice_count < 1 || request.choice_count > options_.limits.sequences_running_max) {
    return invalid_argument(fmt::format("{} choices were asked for, and 1 to {} can run at once",
                                        request.choice_count,
                                        options_.limits.sequences_running_max));
  }
  if (request.beams.width < 0 || (request.beams.width > 0 && (request.pooling != Pooling::kNone ||
                                                              request.constraint != nullptr))) {
    return invalid_argument("a beam search has no constraint, and pools nothing");
  }
  if (request.pooling != Pooling::kNone &&
      (request.choice_count != 1 || request.prompt_logprob_count >= 0 ||
       request.constraint != nullptr)) {
    return invalid_argument(
        "a prompt that is pooled has one result, and neither logprobs nor a constraint");
  }
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const Token token = request.prompt[i];
    if (token >= 0 && token < options_.vocabulary_size) continue;
    return invalid_argument(
        fmt::format("token {} at position {} of the prompt is not one of the "
                    "model's {} tokens",
                    token, i, options_.vocabulary_size));
  }
  return {};
}

EngineStats Engine::Loop::stats() const {
  std::size_t inbox_count = 0;
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_count = inbox_.size();
  }
  const std::lock_guard lock(stats_mutex_);
  EngineStats stats = stats_;
  stats.waiting_count += static_cast<int>(inbox_count);
  return stats;
}

bool Engine::Loop::healthy() const {
  {
    const std::lock_guard lock(inbox_mutex_);
    if (dead_) return false;
  }
  const std::uint64_t motion = executor_->progress() + step_count_.load();
  return watch_.healthy(pending_count_.load() > 0, motion, options_.clock());
}

void Engine::Loop::drain() {
  const std::lock_guard lock(inbox_mutex_);
  draining_ = true;
}

// --- The engine thread
// ----------------------------------------------------------------------------

// Our code does not throw, but std containers do when memory is short. Then the engine is dead and
// says so to everybody, which beats a server that accepts requests and never answers.
void Engine::Loop::run() {
  FinishReason reason = FinishReason::kAbort;
  Status status;
  try {
    serve();
  } catch (const std::exception& exception) {
    reason = FinishReason::kError;
    status = internal_error(fmt::format("the engine died: {}", exception.what()));
    LOG(kError, status.message());
  }
  end_all(reason, status);
}

void Engine::Loop::serve() {
  if (options_.plan_trace) options_.plan_trace(trace_header(options_.limits, options_.layout));
  while (receive()) {
    cancel_abandoned();
    forward_stops();
    step();
  }
}

// Moves new requests into the scheduler; waits only when there is nothing else to do. False when
// the engine shall end.
bool Engine::Loop::receive() {
  std::vector<Arrival> arrivals;
  {
    std::unique_lock lock(inbox_mutex_);
    if (scheduler_.idle()) {
      inbox_changed_.wait(lock, [this] { return stopping_ || !inbox_.empty(); });
    }
    if (stopping_) return false;
    arrivals.swap(inbox_);
    inbox_counts_.clear();
  }
  for (Arrival& arrival : arrivals) admit(std::move(arrival));
  return true;
}

void Engine::Loop::admit(Arrival arrival) {
  if (arrival.stream.expired()) {
    pending_count_.fetch_sub(1);
    return;
  }
  GenerateRequest& request = arrival.request;
  SequenceSpec spec;
  spec.id = next_id_++;
  spec.prompt = std::move(request.prompt);
  spec.output_count_max = request.output_count_max;
  spec.sampling = std::move(request.sampling);
  if (spec.sampling.end_tokens.empty()) spec.sampling.end_tokens = request.end_tokens;
  spec.end_tokens = std::move(request.end_tokens);
  spec.ignore_end_tokens = request.ignore_end_tokens;
  spec.choice_count = request.choice_count;
  spec.prompt_logprob_count = request.prompt_logprob_count;
  spec.priority = request.priority;
  spec.tenant = std::move(request.tenant);
  spec.tenant_weight = request.tenant_weight;
  spec.deadlines = request.deadlines;
  spec.cache_salt = std::move(request.cache_salt);
  spec.constraint = std::move(request.constraint);
  spec.pooling = request.pooling;
  spec.beams = request.beams;
  spec.watch = std::move(request.watch);
  const SequenceId id = spec.id;
  const int choice_count = request.choice_count;

  const Status status = scheduler_.add(std::move(spec), arrival.at);
  if (!status.ok()) {
    push_end(arrival.stream, 0, FinishReason::kError, status, scheduler_.refusal());
    pending_count_.fetch_sub(1);
    return;
  }
  Generation& generation = generations_[id];
  generation.stream = std::move(arrival.stream);
  generation.open_choice_count = choice_count;
  generation.open.resize(static_cast<std::size_t>(choice_count), true);
  generation.pooling = request.pooling;
}

void Engine::Loop::cancel_abandoned() {
  std::erase_if(generations_, [this](const auto& entry) {
    if (!entry.second.stream.expired()) return false;
    scheduler_.cancel(entry.first);
    pending_count_.fetch_sub(1);
    return true;
  });
}

void Engine::Loop::forward_stops() {
  for (const auto& [id, generation] : generations_) {
    const std::shared_ptr<TokenStream> stream = generation.stream.lock();
    if (stream == nullptr) continue;
    for (const auto& [choice, kept_count] : stream->take_stop_requests()) {
      scheduler_.stop(id, choice, kept_count);
    }
  }
}

// Has the next tokens of decoding sequences guessed, where that pays.
void Engine::Loop::draft() {
  const std::vector<DraftWish>& wishes = scheduler_.draft_wishes();
  if (wishes.empty()) return;
  const Microseconds begin = options_.clock();
  const std::vector<std::vector<Token>> drafts = executor_->propose(wishes);
  scheduler_.offer_drafts(drafts, options_.clock() - begin);
}

void Engine::Loop::step() {
  draft();
  const BatchPlan& plan = scheduler_.plan(options_.clock());
  StepResult result;
  result.step = plan.step;
  std::size_t token_count = 0;
  if (!plan.empty()) {
    for (const PlanSlice& slice : plan.slices) token_count += slice.tokens.size();
    executor_->submit(plan);
    masks_.fill(scheduler_.sampling());  // while the forward pass runs
    executor_->supply(scheduler_.sampling());
    result = executor_->wait();
    step_count_.fetch_add(1);
    const Microseconds now = options_.clock();
    watch_.moved(now);
    if (options_.plan_trace) options_.plan_trace(trace_line(plan, result, now));
    if (!result.status.ok()) {
      LOG(kError, fmt::format("step {} failed: {}", plan.step, result.status.message()));
    }
  }
  std::vector<Scheduler::Progress> news = scheduler_.apply(result, options_.clock());
  for (const Scheduler::Progress& progress : news) {
    generated_token_count_ += progress.tokens.size();
    if (progress.finish == Scheduler::Finish::kCorrupted) ++corrupted_count_;
  }
  publish_stats(token_count);  // first: whoever has read an end finds it counted
  for (Scheduler::Progress& progress : news) deliver(std::move(progress), result.status);
  // Else the loop would spin on work that never runs.
  CHECK(token_count > 0 || scheduler_.idle());
}

void Engine::Loop::deliver(Scheduler::Progress progress, const Status& step_status) {
  const bool ended = progress.finish != Scheduler::Finish::kNone;
  const auto entry = generations_.find(progress.sequence);
  if (entry == generations_.end()) return;  // abandoned meanwhile
  Generation& generation = entry->second;
  CHECK(progress.choice < generation.open.size() && generation.open[progress.choice]);

  StreamEvent event;
  event.choice = progress.choice;
  event.tokens = std::move(progress.tokens);
  event.prompt_scores = std::move(progress.prompt_scores);
  if (!progress.pooled.empty()) add_pooled(progress, generation.pooled);
  if (progress.finish == Scheduler::Finish::kPooled) {
    event.pooled = pooled_result(generation.pooling, generation.pooled, progress.prompt_count);
  } else if (!progress.pooled.empty()) {
    return;  // a part of it, which nobody has use for
  }
  event.usage = {progress.prompt_count, progress.cached_count, progress.output_count,
                 progress.queue_time};
  if (ended) {
    auto [reason, status] = reason_of(progress.finish, step_status);
    event.finish = reason;
    event.status = progress.status.ok() ? std::move(status) : std::move(progress.status);
    if (progress.finish == Scheduler::Finish::kLate) {
      event.refusal = {kCodeDeadlineMissed, progress.retry_after};
    } else if (reason == FinishReason::kTimeout) {
      event.refusal.code = kCodeTimeout;
    }
    if (progress.finish == Scheduler::Finish::kEndToken) {
      CHECK(!event.tokens.empty());
      event.end_token = event.tokens.back().token;
    }
    generation.open[progress.choice] = false;
  }
  const bool last = ended && --generation.open_choice_count == 0;
  const std::shared_ptr<TokenStream> stream = generation.stream.lock();
  // The count goes down first: whoever has read the end finds the engine without this request.
  if (last) {
    generations_.erase(entry);
    pending_count_.fetch_sub(1);
  }
  if (stream != nullptr) stream->push(std::move(event));
}

void Engine::Loop::publish_stats(std::size_t token_count) {
  Scheduler::Stats from = scheduler_.stats();
  const bool full = from.waiting_count >= options_.limits.sequences_waiting_max;
  admission_time_.store(full ? scheduler_.admission_time() : 0);
  const std::lock_guard lock(stats_mutex_);
  stats_.running_count = from.running_count;
  stats_.waiting_count = from.waiting_count;
  stats_.cache_usage =
      from.total_block_count == 0
          ? 0.0
          : 1.0 - static_cast<double>(from.free_block_count) / from.total_block_count;
  stats_.prompt_token_count = from.prompt_token_count;
  stats_.computed_prompt_token_count = from.computed_prompt_token_count;
  stats_.prefix_query_token_count = from.prefix_query_token_count;
  stats_.prefix_hit_token_count = from.prefix_hit_token_count;
  stats_.preemption_count = from.preemption_count;
  stats_.draft_count = from.draft_count;
  stats_.draft_token_count = from.draft_token_count;
  stats_.accepted_token_count = from.accepted_token_count;
  stats_.accepted_by_position = from.accepted_by_position;
  stats_.late_count = from.late_count;
  stats_.tenants = std::move(from.tenants);
  stats_.generated_token_count = generated_token_count_;
  stats_.corrupted_count = corrupted_count_;
  if (token_count == 0) return;
  ++stats_.step_count;
  stats_.step_token_sum += token_count;
  const auto bound = std::ranges::lower_bound(kStepTokenBounds, static_cast<int>(token_count));
  ++stats_.step_token_buckets[static_cast<std::size_t>(bound - kStepTokenBounds.begin())];
}

// The engine goes down: nobody may wait for an answer that will not come.
void Engine::Loop::end_all(FinishReason reason, const Status& status) {
  std::vector<Arrival> arrivals;
  {
    const std::lock_guard lock(inbox_mutex_);
    dead_ = true;
    arrivals.swap(inbox_);
  }
  for (const Arrival& arrival : arrivals) {
    const auto choice_count = static_cast<std::uint32_t>(arrival.request.choice_count);
    for (std::uint32_t choice = 0; choice < choice_count; ++choice) {
      push_end(arrival.stream, choice, reason, status);
    }
  }
  for (const auto& [id, generation] : generations_) {
    for (std::uint32_t choice = 0; choice < generation.open.size(); ++choice) {
      if (generation.open[choice]) push_end(generation.stream, choice, reason, status);
    }
  }
  generations_.clear();
  pending_count_.store(0);
}

}  // namespace kun
