#include "server/generation_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "server/api_error.h"
#include "server/sse.h"

namespace kun {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string_view reason_name(FinishReason reason) {
  return reason == FinishReason::kLength ? "length" : "stop";
}

}  // namespace

void GenerationJob::start(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                          Setup setup) {
  const auto job = std::make_shared<GenerationJob>(context, exchange, std::move(setup));
  exchange->set_listener(job);
  job->run();
}

GenerationJob::GenerationJob(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                             Setup setup)
    : context_(context),
      exchange_(exchange),
      setup_(std::move(setup)),
      id_(std::string(setup_.format->id_prefix()) + (setup_.fields.request_id.empty()
                                                         ? exchange->request().request_id
                                                         : setup_.fields.request_id)),
      created_(static_cast<std::int64_t>(std::time(nullptr))),
      arrived_(exchange->request().received),
      keeps_tokens_(setup_.fields.sampling.logprob_count >= 0 || setup_.fields.return_token_ids) {
  const auto stops = std::make_shared<const StopStrings>(setup_.fields.stop);
  cached_counts_.resize(setup_.prompts.size(), 0);
  for (std::size_t i = 0; i < setup_.prompts.size(); ++i) {
    ChoiceText::Options options;
    options.tokenizer = setup_.model->tokenizer;
    options.stops = stops;
    options.skip_special_tokens = setup_.fields.skip_special_tokens;
    options.spaces_between_special_tokens = setup_.fields.spaces_between_special_tokens;
    options.include_stop = setup_.fields.include_stop_str_in_output;
    for (int c = 0; c < setup_.fields.choice_count; ++c) {
      choices_.emplace_back(options);
      choices_.back().answer = setup_.prompts[i].echo;
      choices_.back().text_offset =
          static_cast<std::size_t>(std::ranges::count_if(setup_.prompts[i].echo, [](char byte) {
            return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U;
          }));
    }
  }
}

void GenerationJob::on_closed() {
  schedule();
}

void GenerationJob::on_drained() {
  // Whoever paused for the client has something to say now.
  schedule();
}

void GenerationJob::on_idle() {
  idle_ = true;
  schedule();
}

void GenerationJob::schedule() {
  if (scheduled_.exchange(true)) return;
  context_.pool->resume([self = shared_from_this()] { self->run(); });
}

void GenerationJob::run() {
  const std::lock_guard lock(mutex_);
  scheduled_ = false;  // events that arrive from here on are seen below, or schedule again
  if (done_) return;
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (exchange == nullptr || exchange->closed()) return let_go();
  if (!started_ && !constraint_ready()) return;
  if (!started_) generate();
  if (idle_.exchange(false) && setup_.fields.stream) {
    if (stream_begun_) {
      exchange->write(kSseComment);
    } else {
      begin_stream();  // so that the client knows it has been heard
    }
  }
  pump();
}

void GenerationJob::generate() {
  started_ = true;
  submitted_ = Clock::now();
  for (const JobPrompt& prompt : setup_.prompts) {
    context_.metrics.request_admitted(setup_.fields.choice_count, prompt.output_count_max);
    GenerateRequest request =
        make_generate_request(*setup_.model, setup_.fields, prompt.tokens, prompt.output_count_max);
    request.constraint = constraint_;
    streams_.push_back(setup_.model->generator->generate(std::move(request)));
    // The stream may outlive the job, and its writer the server: the callback owns neither. It is
    // called under the stream's lock, hence only puts the job into the pool's line.
    streams_.back()->set_ready_callback([weak = weak_from_this(), pool = context_.pool] {
      pool->resume([weak] {
        if (const auto self = weak.lock()) self->run();
      });
    });
  }
}

// Takes what the streams have, as long as the client keeps up.
void GenerationJob::pump() {
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  for (std::size_t prompt = 0; prompt < streams_.size(); ++prompt) {
    for (;;) {
      // on_drained() brings us back.
      if (exchange->pending_bytes() > context_.options.limits.pending_bytes_max) return;
      std::optional<StreamEvent> event = streams_[prompt]->poll();
      if (!event) break;
      if (!take_event(prompt, *std::move(event))) return;
    }
  }
}

// False when the job is over.
bool GenerationJob::take_event(std::size_t prompt, StreamEvent event) {
  if (!event.status.ok() || event.finish == FinishReason::kError) {
    fail(event.status.ok() ? internal_error("the generation failed") : event.status);
    return false;
  }
  if (event.finish == FinishReason::kAbort) {
    fail(unavailable("the generation was cancelled by the server"));
    return false;
  }
  if (event.choice >= static_cast<std::uint32_t>(setup_.fields.choice_count)) return true;
  const std::size_t index =
      prompt * static_cast<std::size_t>(setup_.fields.choice_count) + event.choice;
  Choice& choice = choices_[index];
  if (choice.ended) return true;
  cached_counts_[prompt] = std::max(cached_counts_[prompt], event.usage.cached_count);
  choice.queue_seconds = static_cast<double>(event.usage.queue_microseconds) * 1e-6;
  if (!event.tokens.empty()) take_tokens(choice, event);
  if (choice.text.stop_string() != nullptr) {
    if (!event.finish) streams_[prompt]->finish(event.choice, choice.output_count);
    end_choice(choice, prompt, FinishReason::kStop);
  } else if (event.finish) {
    choice.text.finish();
    end_choice(choice, prompt, *event.finish);
  }
  choice.answer += choice.text.take();
  if (setup_.fields.stream) send_piece(choice, index);
  if (ended_count_ < choices_.size()) return true;
  observe_longest();
  if (setup_.fields.stream) {
    finish_stream();
  } else {
    respond();
  }
  return false;
}

void GenerationJob::take_tokens(Choice& choice, const StreamEvent& event) {
  const Clock::time_point now = Clock::now();
  if (choice.output_count == 0) {
    choice.first_token = now;
    context_.metrics.first_token(seconds_between(arrived_, now));
  } else {
    context_.metrics.inter_token(seconds_between(choice.last_token, now));
  }
  choice.last_token = now;
  for (std::size_t i = 0; i < event.tokens.size(); ++i) {
    const SampledToken& token = event.tokens[i];
    ++choice.output_count;
    if (keeps_tokens_) choice.tokens.push_back(token);
    const bool is_end = event.end_token && i + 1 == event.tokens.size();
    if (is_end && std::ranges::count(setup_.fields.stop_token_ids, *event.end_token) > 0) {
      choice.stop_token = event.end_token;
    }
    if (is_end && !setup_.fields.include_stop_str_in_output) break;
    const bool check = choice.output_count > setup_.fields.sampling.output_count_min;
    if (choice.text.add(token.token, check)) break;
  }
}

void GenerationJob::end_choice(Choice& choice, std::size_t prompt, FinishReason reason) {
  choice.ended = true;
  choice.reason = reason;
  ++ended_count_;
  FinishedChoice finished;
  finished.reason = reason;
  finished.prompt_count = static_cast<int>(setup_.prompts[prompt].tokens.size());
  finished.output_count = choice.output_count;
  finished.total_seconds = seconds_between(arrived_, Clock::now());
  finished.cached_count = cached_counts_[prompt];
  finished.queue_seconds = choice.queue_seconds;
  if (choice.output_count > 0) {
    finished.prefill_seconds =
        std::max(seconds_between(submitted_, choice.first_token) - choice.queue_seconds, 0.0);
    finished.decode_seconds = seconds_between(choice.first_token, choice.last_token);
  }
  context_.metrics.choice_finished(finished);
}

void GenerationJob::observe_longest() {
  const auto per_prompt = static_cast<std::ptrdiff_t>(setup_.fields.choice_count);
  for (auto first = choices_.begin(); first != choices_.end(); first += per_prompt) {
    const auto longest =
        std::ranges::max_element(first, first + per_prompt, {}, &Choice::output_count);
    context_.metrics.request_finished(longest->output_count);
  }
}

void GenerationJob::fail(const Status& status) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].ended) continue;
    const std::size_t prompt = i / static_cast<std::size_t>(setup_.fields.choice_count);
    end_choice(choices_[i], prompt, FinishReason::kError);
  }
  done_ = true;
  streams_.clear();
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  const ApiError error = error_from(status);
  if (!stream_begun_) return exchange->respond(error_response(error));
  fail_stream(*exchange, error);
}

void GenerationJob::fail_stream(Exchange& exchange, const ApiError& error) {
  exchange.write(sse_event(error_json(error)) + std::string(kSseDone));
  exchange.end();
}

// The client has gone.
void GenerationJob::let_go() {
  for (std::size_t i = 0; started_ && i < choices_.size(); ++i) {
    if (choices_[i].ended) continue;
    const std::size_t prompt = i / static_cast<std::size_t>(setup_.fields.choice_count);
    end_choice(choices_[i], prompt, FinishReason::kAbort);
  }
  done_ = true;
  streams_.clear();
}

void GenerationJob::begin_stream() {
  if (std::exchange(stream_begun_, true)) return;
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  exchange->begin(sse_head());
  if (!setup_.format->opens_choices()) return;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    ChoicePart part;
    part.index = static_cast<int>(i);
    part.first = true;
    send_chunk(part, i / static_cast<std::size_t>(setup_.fields.choice_count));
    choices_[i].first = false;
  }
}

void GenerationJob::send_piece(Choice& choice, std::size_t index) {
  begin_stream();
  const std::size_t prompt = index / static_cast<std::size_t>(setup_.fields.choice_count);
  if (!choice.answer.empty() || !choice.tokens.empty()) {
    ChoicePart part = part_of(choice, index);
    send_chunk(part, prompt);
    choice.answer.clear();
    for (const SampledToken& token : choice.tokens) {
      choice.text_offset += shown_length(*setup_.model->tokenizer, token.token);
    }
    choice.tokens.clear();
    choice.first = false;
  }
  if (!choice.ended) return;
  const ChoiceFinish finish = finish_of(choice);
  ChoicePart last = part_of(choice, index);
  last.finish = &finish;
  send_chunk(last, prompt);
}

void GenerationJob::send_chunk(const ChoicePart& part, std::size_t prompt) {
  JsonWriter json;
  open_answer(json);
  json.key("choices").begin_array();
  setup_.format->write_delta(json, part);
  json.end_array();
  setup_.format->write_extra(json, setup_.prompts[prompt].tokens, part.first);
  if (setup_.fields.continuous_usage_stats) {
    json.key("usage");
    write_usage(json, usage());
  } else if (setup_.fields.include_usage) {
    json.key("usage").null();
  }
  json.end_object();
  if (const auto exchange = exchange_.lock()) exchange->write(sse_event(json.text()));
}

void GenerationJob::finish_stream() {
  done_ = true;
  streams_.clear();
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (setup_.fields.include_usage) {
    JsonWriter json;
    open_answer(json);
    json.key("choices").begin_array().end_array().key("usage");
    write_usage(json, usage());
    json.end_object();
    exchange->write(sse_event(json.text()));
  }
  exchange->write(kSseDone);
  exchange->end();
}

void GenerationJob::respond() {
  done_ = true;
  streams_.clear();
  JsonWriter json;
  open_answer(json);
  json.key("choices").begin_array();
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const ChoiceFinish finish = finish_of(choices_[i]);
    ChoicePart part = part_of(choices_[i], i);
    part.finish = &finish;
    setup_.format->write_choice(json, part);
  }
  json.end_array();
  setup_.format->write_extra(json, setup_.prompts.front().tokens, true);
  json.key("usage");
  write_usage(json, usage());
  json.end_object();
  HttpResponse response;
  response.body = json.take();
  exchange_.lock()->respond(std::move(response));
}

void GenerationJob::open_answer(JsonWriter& json) const {
  json.begin_object();
  json.key("id").string(id_);
  json.key("object").string(setup_.format->object_name(setup_.fields.stream));
  json.key("created").integer(created_);
  json.key("model").string(setup_.fields.model);
  json.key("system_fingerprint").string("kun-" + context_.options.version);
}

ChoicePart GenerationJob::part_of(const Choice& choice, std::size_t index) const {
  ChoicePart part;
  part.index = static_cast<int>(index);
  part.first = choice.first;
  part.text = choice.answer;
  part.tokens = choice.tokens;
  part.text_offset = choice.text_offset;
  part.prompt = setup_.prompts[index / static_cast<std::size_t>(setup_.fields.choice_count)].tokens;
  return part;
}

ChoiceFinish GenerationJob::finish_of(const Choice& choice) const {
  ChoiceFinish finish;
  finish.reason = reason_name(choice.reason);
  finish.stop_string = choice.text.stop_string();
  finish.stop_token = choice.stop_token;
  return finish;
}

CompletionUsage GenerationJob::usage() const {
  CompletionUsage usage;
  for (const JobPrompt& prompt : setup_.prompts) {
    usage.prompt_count += static_cast<std::int64_t>(prompt.tokens.size());
  }
  for (const int count : cached_counts_) usage.cached_count += count;
  for (const Choice& choice : choices_) usage.output_count += choice.output_count;
  return usage;
}

}  // namespace kun
