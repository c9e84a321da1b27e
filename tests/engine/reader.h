// A reader of token streams that waits, and text as the tokens of scripted models.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/token_stream.h"

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

}  // namespace kun
