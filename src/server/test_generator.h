// Test support: a Generator whose answers are written in the test. Tokens are bytes (see
// make_byte_tokenizer); a thread of its own plays the engine and pushes a few tokens a step.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

#include "engine/generator.h"
#include "text/byte_tokenizer.h"

namespace kun {

struct Script {
  std::string text = "Hello";  // then the end token
  int tokens_per_step = 1;
  std::chrono::microseconds step{200};
  int cached_count = 0;
  Status refusal;  // instead of an answer
  Refusal why;     // of it
  // Tokens before the request's time is over, which is told behind them, or with them where a step
  // has as many.
  int timeout_after = -1;
  int fail_after = -1;   // tokens before an error
  bool endless = false;  // repeats `text` until output_count_max
};

class ScriptedGenerator : public Generator {
 public:
  ScriptedGenerator() : thread_([this] { run(); }) {}

  ~ScriptedGenerator() override {
    stopping_ = true;
    thread_.join();
  }

  // `write` makes the script of each request; called when it arrives.
  void play(std::function<Script(const GenerateRequest&)> write) {
    const std::lock_guard lock(mutex_);
    write_ = std::move(write);
  }
  void play(const Script& script) {
    play([script](const GenerateRequest&) { return script; });
  }
  void play(std::string text) {
    Script script;
    script.text = std::move(text);
    play(script);
  }

  std::shared_ptr<TokenStream> generate(GenerateRequest request) override {
    auto stream = std::make_shared<TokenStream>();
    const std::lock_guard lock(mutex_);
    Running running;
    running.script = write_(request);
    running.stream = stream;
    running.request = request;
    running.sent.resize(static_cast<std::size_t>(request.choice_count), 0);
    running.ended.resize(running.sent.size(), false);
    last_ = std::move(request);
    running_.push_back(std::move(running));
    return stream;
  }

  EngineStats stats() const override {
    EngineStats stats;
    const std::lock_guard lock(mutex_);
    stats.running_count = static_cast<int>(running_.size());
    stats.prompt_token_count = 11;
    stats.generated_token_count = 22;
    stats.step_token_buckets = {3, 0, 1};
    stats.step_count = 4;
    stats.step_token_sum = 19;
    stats.draft_count = 5;
    stats.draft_token_count = 9;
    stats.accepted_token_count = 7;
    stats.accepted_by_position = {4, 3};
    return stats;
  }
  bool healthy() const override { return healthy_; }
  void drain() override {}

  std::atomic<bool> healthy_ = true;

  GenerateRequest last() const {
    const std::lock_guard lock(mutex_);
    return last_;
  }
  std::string last_prompt() const {
    std::string text;
    for (const Token token : last().prompt) text += static_cast<char>(token);
    return text;
  }
  int running_count() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(running_.size());
  }
  int dropped_count() const { return dropped_count_; }
  int stopped_at() const { return stopped_at_; }  // kept_count of the last stop request

 private:
  struct Running {
    Script script;
    GenerateRequest request;
    std::weak_ptr<TokenStream> stream;
    std::vector<int> sent;  // [choice]
    std::vector<bool> ended;
    std::chrono::steady_clock::time_point next;
  };

  void run() {
    while (!stopping_) {
      {
        const std::lock_guard lock(mutex_);
        std::erase_if(running_, [&](Running& running) { return step(running); });
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }

  // True when it is over.
  bool step(Running& running) {
    const auto stream = running.stream.lock();
    if (stream == nullptr || stream.use_count() == 1) {
      ++dropped_count_;
      return true;
    }
    const auto now = std::chrono::steady_clock::now();
    if (now < running.next) return false;
    running.next = now + running.script.step;
    for (const TokenStream::StopRequest& stop : stream->take_stop_requests()) {
      stopped_at_ = stop.kept_count;
      running.ended[stop.choice] = true;
      StreamEvent event;
      event.choice = stop.choice;
      event.finish = FinishReason::kStop;
      stream->push(std::move(event));
    }
    for (std::size_t choice = 0; choice < running.sent.size(); ++choice) {
      if (!running.ended[choice]) advance(running, *stream, choice);
    }
    return std::ranges::all_of(running.ended, [](bool ended) { return ended; });
  }

  // [first token, how many, 1 for a mean]: tells which prompt this is. Endless: never.
  static void pool(Running& running, TokenStream& stream) {
    if (running.script.endless) return;
    const GenerateRequest& request = running.request;
    StreamEvent event;
    event.status = running.script.refusal;
    event.refusal = running.script.why;
    event.finish = event.status.ok() ? FinishReason::kStop : FinishReason::kError;
    if (running.script.timeout_after >= 0) {
      event.finish = FinishReason::kTimeout;
      event.refusal.code = kCodeTimeout;
    }
    event.usage = {static_cast<int>(request.prompt.size()), running.script.cached_count, 0};
    event.pooled = {static_cast<float>(request.prompt.front()),
                    static_cast<float>(request.prompt.size()),
                    request.pooling == Pooling::kMean ? 1.0F : 0.0F};
    running.ended[0] = true;
    stream.push(std::move(event));
  }

  static void advance(Running& running, TokenStream& stream, std::size_t choice) {
    const Script& script = running.script;
    if (running.request.pooling != Pooling::kNone) return pool(running, stream);
    StreamEvent event;
    event.choice = static_cast<std::uint32_t>(choice);
    if (choice == 0 && running.sent[0] == 0) event.prompt_scores = scores(running.request);
    int& sent = running.sent[choice];
    if (!script.refusal.ok() || sent == script.fail_after) {
      event.status = script.refusal.ok() ? internal_error("the script says so") : script.refusal;
      event.finish = FinishReason::kError;
      event.refusal = script.why;
    } else if (sent == script.timeout_after) {
      event.finish = FinishReason::kTimeout;
      event.refusal.code = kCodeTimeout;
    }
    for (int i = 0; i < script.tokens_per_step && !event.finish; ++i) {
      SampledToken token;
      const auto size = static_cast<int>(script.text.size());
      const bool end = sent >= size && !script.endless;
      token.token = end ? kByteTokenizerEnd
                        : static_cast<unsigned char>(
                              script.text[static_cast<std::size_t>(sent % std::max(size, 1))]);
      token.logprob = -0.5F;
      for (int k = 0; k < running.request.sampling.logprob_count; ++k) {
        token.top.push_back({token.token + k, -0.5F - static_cast<float>(k)});
      }
      ++sent;
      event.tokens.push_back(token);
      const auto& ends = running.request.end_tokens;
      if (std::ranges::count(ends, token.token) > 0) {
        event.finish = FinishReason::kStop;
        event.end_token = token.token;
      } else if (sent >= running.request.output_count_max || end) {
        event.finish = FinishReason::kLength;
      } else if (script.tokens_per_step > 1 && sent == script.timeout_after) {
        event.finish = FinishReason::kTimeout;
        event.refusal.code = kCodeTimeout;
      }
    }
    running.ended[choice] = event.finish.has_value();
    event.usage = {static_cast<int>(running.request.prompt.size()), script.cached_count, sent};
    stream.push(std::move(event));
  }

  // Of every token of the prompt but the first.
  static std::vector<SampledToken> scores(const GenerateRequest& request) {
    std::vector<SampledToken> all;
    for (std::size_t i = 1; i < request.prompt.size() && request.prompt_logprob_count >= 0; ++i) {
      SampledToken score;
      score.token = request.prompt[i];
      score.logprob = -1.0F - static_cast<float>(i);
      for (int k = 0; k < request.prompt_logprob_count; ++k) score.top.push_back({k, -0.25F});
      all.push_back(score);
    }
    return all;
  }

  mutable std::mutex mutex_;
  std::function<Script(const GenerateRequest&)> write_ = [](const auto&) { return Script(); };
  GenerateRequest last_;
  std::list<Running> running_;
  std::atomic<int> dropped_count_ = 0;
  std::atomic<int> stopped_at_ = -1;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace kun
