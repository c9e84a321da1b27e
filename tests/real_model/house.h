// A real model with a device, and a reader that waits for generations: what the tests here share.
// The model's path comes from the environment (KUN_MODEL, set by test.sh).
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "runtime/engine_setup.h"

namespace kun {

// For `if (!has_model()) GTEST_SKIP() << kNoModel;`
inline bool has_model() {
  return std::getenv("KUN_MODEL") != nullptr;
}
inline constexpr const char* kNoModel = "KUN_MODEL does not name a GGUF file; see test.sh";

// The model loaded onto one device.
struct House {
  explicit House(const DeviceOptions& options) {
    auto opened = open_cpu_device(options);
    CHECK(opened.has_value());
    device = *std::move(opened);
    auto loaded = load_bundle(std::getenv("KUN_MODEL"), *device, {});
    if (!loaded) ADD_FAILURE() << loaded.error().message();
    CHECK(loaded.has_value());
    bundle = *std::move(loaded);
    CHECK(bundle->tokenizer != nullptr);
  }

  std::unique_ptr<Engine> engine(const EngineSettings& settings) const {
    auto setup = make_engine(*bundle, device->ops(), settings);
    if (!setup) ADD_FAILURE() << setup.error().message();
    CHECK(setup.has_value());
    return std::move(setup->engine);
  }

  std::vector<Token> encode(std::string_view text) const {
    return bundle->tokenizer->encode(text, true);
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<ModelBundle> bundle;
};

inline std::string test_text(const std::string& name) {
  std::ifstream in(KUN_TEST_DATA "/real-model/" + name, std::ios::binary);
  CHECK(in.good());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}
inline std::string play_text() {
  return test_text("coriolanus.txt");
}
inline std::string novel_text() {
  return test_text("ulysses.txt");
}

// What one choice of a generation came to.
struct Answer {
  std::vector<SampledToken> sampled;
  std::optional<FinishReason> finish;
  std::optional<Token> end_token;
  StreamUsage usage;
  Status status;

  std::vector<Token> tokens() const {
    std::vector<Token> ids;
    for (const SampledToken& token : sampled) ids.push_back(token.token);
    return ids;
  }
};

// Reads one stream to its end.
class Reading {
 public:
  Reading(std::shared_ptr<TokenStream> stream, int choice_count)
      : stream_(std::move(stream)), answers_(static_cast<std::size_t>(choice_count)) {}

  // Takes what is there; false when every choice has ended.
  bool poll() {
    while (const auto event = stream_->poll()) {
      Answer& answer = answers_.at(event->choice);
      answer.sampled.insert(answer.sampled.end(), event->tokens.begin(), event->tokens.end());
      if (!event->finish) continue;
      answer.finish = event->finish;
      answer.end_token = event->end_token;
      answer.usage = event->usage;
      answer.status = event->status;
      // A refusal ends the whole request with its one event.
      ended_count_ += event->status.ok() ? 1 : answers_.size();
    }
    return ended_count_ < answers_.size();
  }

  TokenStream& stream() { return *stream_; }
  const std::vector<Answer>& answers() const { return answers_; }

 private:
  std::shared_ptr<TokenStream> stream_;
  std::vector<Answer> answers_;
  std::size_t ended_count_ = 0;
};

// All requests at once, to their ends: [request][choice].
inline std::vector<std::vector<Answer>> run(Engine& engine, std::vector<GenerateRequest> requests) {
  constexpr std::chrono::minutes kPatience(3);
  std::vector<Reading> readings;
  for (GenerateRequest& request : requests) {
    const int choice_count = request.choice_count;
    readings.emplace_back(engine.generate(std::move(request)), choice_count);
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::vector<Answer>> answers;
  for (Reading& reading : readings) {
    while (reading.poll()) {
      if (std::chrono::steady_clock::now() - start > kPatience) {
        ADD_FAILURE() << "no end within " << kPatience.count() << " minutes";
        return {};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    answers.push_back(reading.answers());
    for (const Answer& answer : answers.back()) {
      EXPECT_TRUE(answer.status.ok()) << answer.status.message();
    }
  }
  return answers;
}

inline Answer run_one(Engine& engine, GenerateRequest request) {
  const auto answers = run(engine, {std::move(request)});
  return answers.empty() ? Answer{} : answers.front().front();
}

}  // namespace kun
