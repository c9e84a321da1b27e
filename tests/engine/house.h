// An engine with everything below it around a scripted model, and a reader that waits.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "executor/local_executor.h"
#include "host_ops.h"
#include "models/script_model.h"

namespace kun {

inline std::vector<Token> bytes(std::string_view text) {
  std::vector<Token> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

inline std::string text_of(const std::vector<Token>& tokens) {
  std::string text;
  for (const Token token : tokens) {
    if (token < 256) text.push_back(static_cast<char>(token));
  }
  return text;
}

inline GenerateRequest ask(std::string_view prompt, int output_count_max = 1000) {
  GenerateRequest request;
  request.prompt = bytes(prompt);
  request.output_count_max = output_count_max;
  request.sampling.temperature = 0.0F;
  request.end_tokens = {256};
  return request;
}

// Everything a stream gave for one choice.
struct Answer {
  std::vector<Token> tokens;
  std::optional<FinishReason> finish;
  std::optional<Token> end_token;
  StreamUsage usage;
  Status status;
  int event_count = 0;

  std::string text() const { return text_of(tokens); }
};

// Reads one stream by its ready callback.
class Reader {
 public:
  explicit Reader(std::shared_ptr<TokenStream> stream) : stream_(std::move(stream)) {
    stream_->set_ready_callback([this] {
      const std::lock_guard lock(mutex_);
      ready_ = true;
      changed_.notify_one();
    });
  }
  ~Reader() {
    if (stream_ != nullptr) stream_->set_ready_callback(nullptr);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  TokenStream& stream() { return *stream_; }
  void let_go() {
    stream_->set_ready_callback(nullptr);
    stream_.reset();
  }

  // The next event; nullopt after 30 s, which is a failure everywhere.
  std::optional<StreamEvent> next() {
    while (true) {
      if (auto event = stream_->poll()) return event;
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, std::chrono::seconds(30), [this] { return ready_; })) {
        ADD_FAILURE() << "the stream gave nothing for 30 s";
        return std::nullopt;
      }
      ready_ = false;
    }
  }

  std::map<std::uint32_t, Answer> read_all(int choice_count = 1) {
    std::map<std::uint32_t, Answer> answers;
    while (choice_count > 0) {
      auto event = next();
      if (!event.has_value()) break;
      Answer& answer = answers[event->choice];
      EXPECT_FALSE(answer.finish.has_value()) << "an event after the end";
      for (const SampledToken& token : event->tokens) answer.tokens.push_back(token.token);
      answer.finish = event->finish;
      answer.end_token = event->end_token;
      answer.usage = event->usage;
      answer.status = event->status;
      ++answer.event_count;
      if (event->finish.has_value()) --choice_count;
    }
    return answers;
  }
  Answer read() { return read_all()[0]; }

 private:
  std::shared_ptr<TokenStream> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;
};

struct HouseOptions {
  SchedulerLimits limits;
  int block_count = 256;
  EngineOptions engine;  // limits, layout and vocabulary are filled in
};

class House {
 public:
  explicit House(std::string_view script, HouseOptions options = {}) {
    auto model = make_script_model(script);
    CHECK(model.has_value());
    std::shared_ptr<const Model> shared = *std::move(model);
    EngineOptions engine_options = std::move(options.engine);
    engine_options.limits = options.limits;
    engine_options.limits.block_counts = {options.block_count};
    engine_options.layout = shared->kv_layout();
    engine_options.vocabulary_size = shared->vocabulary_size();
    auto worker = Worker::create(shared, ops_, {{options.block_count}, 0, 1 << 20});
    CHECK(worker.has_value());
    engine_ = std::make_unique<Engine>(std::move(engine_options),
                                       std::make_unique<LocalExecutor>(*std::move(worker)));
  }

  HostOps& ops() { return ops_; }
  Engine& engine() { return *engine_; }
  void tear_down() { engine_.reset(); }
  Answer answer(GenerateRequest request) {
    return Reader(engine_->generate(std::move(request))).read();
  }

  // Waits until the engine's figures satisfy `condition`; false after 30 s.
  template <class Condition>
  bool wait_for(const Condition& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (std::chrono::steady_clock::now() < end) {
      if (condition(engine_->stats())) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

 private:
  HostOps ops_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace kun
