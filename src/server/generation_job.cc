#include "server/generation_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <random>
#include <utility>

#include "base/log.h"
#include "server/api_error.h"
#include "server/beam_fields.h"
#include "server/openai_request.h"
#include "server/request_deadlines.h"
#include "server/sse.h"
#include "server/tenant_request.h"

namespace kun {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::uint64_t random_salt() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

std::size_t character_count(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

// The tokens behind the marks that a parser waits for: a tokenizer may call them special.
std::vector<Token> mark_tokens(const Tokenizer& tokenizer, AnswerSyntax syntax) {
  std::vector<Token> tokens;
  for (const std::string_view mark : answer_marks(syntax)) {
    const auto token = tokenizer.find(mark);
    if (token && tokenizer.is_special(*token)) tokens.push_back(*token);
  }
  return tokens;
}

}  // namespace

GenerationJob::GenerationJob(ServerContext& context, const std::shared_ptr<Exchange>& exchange,
                             Setup setup, MemoryHold memory)
    : context_(context),
      exchange_(exchange),
      setup_(std::move(setup)),
      arrived_(exchange->request().received),
      memory_(std::move(memory)),
      deepseek_(exchange->request().dialect == Dialect::kDeepSeek),
      keeps_tokens_(setup_.fields.wants_logprobs || setup_.fields.return_token_ids) {
  // What the parser must see.
  text_options_.kept_special = std::make_shared<const std::vector<Token>>(
      setup_.parser ? mark_tokens(*setup_.model->tokenizer, setup_.parser->syntax)
                    : std::vector<Token>());
  text_options_.tokenizer = setup_.model->tokenizer;
  text_options_.stops = std::make_shared<const StopStrings>(setup_.fields.stop);
  text_options_.skip_special_tokens = setup_.fields.skip_special_tokens;
  text_options_.spaces_between_special_tokens = setup_.fields.spaces_between_special_tokens;
  text_options_.include_stop = setup_.fields.include_stop_str_in_output;
  cached_counts_.resize(setup_.prompts.size(), 0);
  prompt_scores_.resize(setup_.prompts.size());
  for (std::size_t i = 0; i < setup_.prompts.size(); ++i) {
    add_choices(setup_.prompts[i]);
    // Nothing predicts the first token.
    if (setup_.fields.prompt_logprob_count < 0) continue;
    prompt_scores_[i].push_back({setup_.prompts[i].tokens.front(), 0.0F, {}});
  }
  setup_.writer->begin(answer_info(*exchange));
}

void GenerationJob::add_choices(const JobPrompt& prompt) {
  for (int c = 0; c < setup_.fields.sample_count; ++c) {
    Choice& choice = choices_.emplace_back(text_options_);
    choice.answer.content = prompt.echo;
    choice.text_offset = character_count(prompt.echo);
    if (setup_.fields.repetition) choice.repetition.emplace(*setup_.fields.repetition);
    if (!setup_.parser) continue;
    choice.parser.emplace(*setup_.parser);
    choice.thinks = choice.parser->in_reasoning();
  }
}

AnswerInfo GenerationJob::answer_info(const Exchange& exchange) const {
  AnswerInfo info;
  info.id =
      std::string(setup_.writer->id_prefix()) +
      (setup_.fields.request_id.empty() ? exchange.request().request_id : setup_.fields.request_id);
  info.created = static_cast<std::int64_t>(std::time(nullptr));
  info.model = setup_.fields.model;
  info.fingerprint = "kun-" + context_.options.version;
  info.salt = random_salt();
  info.dialect = exchange.request().dialect;
  info.stream = setup_.fields.stream;
  info.include_usage = setup_.fields.include_usage;
  info.continuous_usage = setup_.fields.continuous_usage_stats;
  info.logprobs = setup_.fields.wants_logprobs;
  info.token_ids = setup_.fields.return_token_ids;
  info.tokens_as_ids = setup_.fields.tokens_as_ids;
  info.tokenizer = setup_.model->tokenizer;
  return info;
}

void GenerationJob::on_closed() {
  // The exchange lets go of this now: run() must come whoever else waits in the pool's line.
  context_.pool->resume([self = shared_from_this()] { self->run(); });
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
  if (scheduled_->exchange(true)) return;
  context_.pool->resume([self = shared_from_this()] { self->run(); });
}

void GenerationJob::run() {
  const std::lock_guard lock(mutex_);
  try {
    run_locked();
  } catch (const std::exception& exception) {
    LOG(kError, fmt::format("an answer was given up: {}", exception.what()));
    const std::shared_ptr<Exchange> exchange = exchange_.lock();
    if (exchange == nullptr || std::exchange(done_, true)) return;
    streams_.clear();
    send_error(*exchange, {500, "the server could not finish this answer", std::nullopt});
  }
}

void GenerationJob::run_locked() {
  *scheduled_ = false;  // events that arrive from here on are seen below, or schedule again
  if (done_) return;
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (exchange == nullptr || exchange->closed()) return let_go();
  if (!started_ && !constraint_ready()) return;
  if (!started_) generate();
  if (idle_.exchange(false)) keep_alive(*exchange);
  pump();
}

// Nothing has been sent for a while: proxies and clients hear that there is still somebody.
void GenerationJob::keep_alive(Exchange& exchange) {
  if (setup_.fields.stream) {
    if (stream_begun_) return exchange.write(kSseComment);
    return begin_stream();
  }
  // DeepSeek's way for answers in one piece: blank lines before the JSON.
  if (exchange.request().dialect != Dialect::kDeepSeek) return;
  if (!std::exchange(blanks_sent_, true)) exchange.begin(HttpResponse());
  exchange.write("\n");
}

void GenerationJob::generate() {
  started_ = true;
  submitted_ = Clock::now();
  for (const JobPrompt& prompt : setup_.prompts) {
    context_.metrics.request_admitted(setup_.fields.sample_count, prompt.output_count_max);
    GenerateRequest request =
        make_generate_request(*setup_.model, setup_.fields, prompt.tokens, prompt.output_count_max);
    request.constraint = constraint_;
    request.deadlines = remaining(setup_.fields.deadlines, submitted_ - arrived_);
    if (const std::shared_ptr<Exchange> exchange = exchange_.lock()) {
      give_to_tenant(request, exchange->request(), context_.options.isolate_tenants);
    }
    if (setup_.fields.thinking_token_budget) {
      request.sampling.thinking =
          thinking_limit(*setup_.model, *setup_.fields.thinking_token_budget, prompt.start);
    }
    if (setup_.fields.beams.width > 0 && !setup_.fields.stop.empty()) {
      request.watch = make_stop_watch(text_options_, setup_.fields.sampling.output_count_min);
    }
    streams_.push_back(setup_.model->generator->generate(std::move(request)));
    // The stream may outlive the job, and its writer the server: the callback owns neither. It is
    // called under the stream's lock, hence only puts the job into the pool's line.
    streams_.back()->set_ready_callback(
        [weak = weak_from_this(), pool = context_.pool, scheduled = scheduled_] {
          if (scheduled->exchange(true)) return;
          pool->resume([weak] {
            if (const auto self = weak.lock()) self->run();
          });
        });
  }
}

// Takes what the streams have, as long as the client keeps up, and only so much of it at a time
// that other requests get their turn.
void GenerationJob::pump() {
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  auto tokens_left = static_cast<std::size_t>(context_.options.limits.tokens_at_once_max);
  for (std::size_t prompt = 0; prompt < streams_.size(); ++prompt) {
    for (;;) {
      // on_drained() brings us back.
      if (exchange->pending_bytes() > context_.options.limits.pending_bytes_max) return;
      if (tokens_left == 0) return schedule();
      std::optional<StreamEvent> event = streams_[prompt]->poll(tokens_left);
      if (!event) break;
      tokens_left -= std::min(tokens_left, event->tokens.size());
      if (!take_event(prompt, *std::move(event))) return;
    }
  }
}

// False when the job is over.
bool GenerationJob::take_event(std::size_t prompt, StreamEvent event) {
  if (!event.status.ok() || event.finish == FinishReason::kError) {
    fail(event.status.ok() ? internal_error("the generation failed") : event.status, event.refusal);
    return false;
  }
  // Of a slow reader's events what ended the answer may come together with its tokens.
  if (event.finish == FinishReason::kTimeout && silent() && event.tokens.empty()) {
    fail(unavailable("timeout_ms was over before the first token"), event.refusal);
    return false;
  }
  if (event.finish == FinishReason::kAbort) {
    fail(unavailable("the generation was cancelled by the server"));
    return false;
  }
  if (event.choice >= static_cast<std::uint32_t>(setup_.fields.sample_count)) return true;
  const std::size_t index =
      prompt * static_cast<std::size_t>(setup_.fields.sample_count) + event.choice;
  Choice& choice = choices_[index];
  if (choice.ended) return true;
  cached_counts_[prompt] = std::max(cached_counts_[prompt], event.usage.cached_count);
  choice.queue_seconds = static_cast<double>(event.usage.queue_microseconds) * 1e-6;
  std::vector<SampledToken>& scores = prompt_scores_[prompt];
  scores.insert(scores.end(), event.prompt_scores.begin(), event.prompt_scores.end());
  if (!event.tokens.empty()) take_tokens(choice, event);
  const bool over = choice.repeats || (choice.parser && choice.parser->over());
  if (choice.text.stop_string() != nullptr || over) {
    if (!event.finish) streams_[prompt]->finish(event.choice, choice.output_count);
    end_choice(choice, prompt, FinishReason::kStop);
  } else if (event.finish) {
    end_choice(choice, prompt, *event.finish);
  }
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
  if (setup_.fields.drops_output) return;
  for (std::size_t i = 0; i < event.tokens.size(); ++i) {
    const SampledToken& token = event.tokens[i];
    ++choice.output_count;
    choice.logprob_sum += static_cast<double>(token.logprob);
    if (keeps_tokens_) choice.tokens.push_back(token);
    const bool is_end = event.end_token && i + 1 == event.tokens.size();
    if (is_end && std::ranges::count(setup_.fields.stop_token_ids, *event.end_token) > 0) {
      choice.stop_token = event.end_token;
    }
    if (is_end && !setup_.fields.include_stop_str_in_output) break;
    if (take_text(choice, token.token)) break;
    choice.repeats = choice.repetition && choice.repetition->add(token.token);
    if (choice.repeats) break;
  }
}

// True when the text is over.
bool GenerationJob::take_text(Choice& choice, Token token) {
  const bool check = choice.output_count > setup_.fields.sampling.output_count_min;
  const bool stopped = choice.text.add(token, check);
  if (!choice.parser) {
    choice.answer.content += choice.text.take();
    return stopped;
  }
  const bool thought = choice.parser->in_reasoning();
  choice.answer.append(choice.parser->feed(choice.text.take()));
  if (thought && choice.parser->in_reasoning()) ++choice.reasoning_count;
  return stopped || choice.parser->over();
}

bool GenerationJob::scores_missing(std::size_t prompt) const {
  return setup_.fields.prompt_logprob_count >= 0 &&
         prompt_scores_[prompt].size() < setup_.prompts[prompt].tokens.size();
}

void GenerationJob::end_choice(Choice& choice, std::size_t prompt, FinishReason reason) {
  choice.text.finish();
  const std::string rest = choice.text.take();
  if (choice.parser) {
    choice.answer.append(choice.parser->feed(rest));
    choice.answer.append(choice.parser->finish());
  } else {
    choice.answer.content += rest;
  }
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
  const auto per_prompt = static_cast<std::ptrdiff_t>(setup_.fields.sample_count);
  for (auto first = choices_.begin(); first != choices_.end(); first += per_prompt) {
    const auto longest =
        std::ranges::max_element(first, first + per_prompt, {}, &Choice::output_count);
    context_.metrics.request_finished(longest->output_count);
  }
}

void GenerationJob::fail(const Status& status, const Refusal& refusal) {
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].ended) end_choice(choices_[i], prompt_of(i), FinishReason::kError);
  }
  done_ = true;
  streams_.clear();
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  const ApiError error = error_from(status, refusal);
  send_error(*exchange, error);
}

// In the way that is left: as the answer, or behind what has been sent.
void GenerationJob::send_error(Exchange& exchange, const ApiError& error) {
  const Dialect dialect = exchange.request().dialect;
  if (blanks_sent_) {
    exchange.write(error_json(error, dialect));
  } else if (stream_begun_) {
    exchange.write(setup_.writer->stream_error(error));
  } else {
    return exchange.respond(error_response(error, dialect));
  }
  exchange.end();
}

// The client has gone.
void GenerationJob::let_go() {
  for (std::size_t i = 0; started_ && i < choices_.size(); ++i) {
    if (!choices_[i].ended) end_choice(choices_[i], prompt_of(i), FinishReason::kAbort);
  }
  done_ = true;
  streams_.clear();
}

void GenerationJob::begin_stream() {
  if (std::exchange(stream_begun_, true)) return;
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  exchange->begin(sse_head());
  const AnswerPiece nothing;
  std::vector<ChoicePart> parts;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    ChoicePart part = part_of(choices_[i], i);
    part.text = &nothing;
    part.tokens = {};
    parts.push_back(part);
  }
  const std::string events = setup_.writer->open_stream(parts, usage());
  if (events.empty()) return;
  exchange->write(events);
  for (Choice& choice : choices_) choice.first = false;
}

void GenerationJob::send_piece(Choice& choice, std::size_t index) {
  if (!choice.ended && scores_missing(prompt_of(index))) return;  // they go with the first piece
  begin_stream();
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  if (!choice.answer.empty() || !choice.tokens.empty()) {
    exchange->write(setup_.writer->piece(part_of(choice, index), usage()));
    choice.answer = AnswerPiece();
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
  last.last = ended_count_ == choices_.size();
  exchange->write(setup_.writer->piece(last, usage()));
}

void GenerationJob::finish_stream() {
  done_ = true;
  streams_.clear();
  const std::shared_ptr<Exchange> exchange = exchange_.lock();
  exchange->write(setup_.writer->close_stream(usage()));
  exchange->end();
}

}  // namespace kun
