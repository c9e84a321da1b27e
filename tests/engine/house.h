// An engine with everything below it around a scripted model.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>
#include <thread>

#include "engine/engine.h"
#include "executor/local_executor.h"
#include "host_ops.h"
#include "models/script_model.h"
#include "reader.h"

namespace kun {

inline GenerateRequest ask(std::string_view prompt, int output_count_max = 1000) {
  GenerateRequest request;
  request.prompt = bytes(prompt);
  request.output_count_max = output_count_max;
  request.sampling.temperature = 0.0F;
  request.end_tokens = {256};
  return request;
}

struct HouseOptions {
  SchedulerLimits limits;
  int block_count = 256;
  EngineOptions engine;  // limits, layout and vocabulary are filled in
  std::unique_ptr<Drafter> drafter = {};
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
    engine_ = std::make_unique<Engine>(
        std::move(engine_options),
        std::make_unique<LocalExecutor>(*std::move(worker), std::move(options.drafter)));
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
