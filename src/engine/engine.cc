#include "engine/engine.h"

#include <utility>

#include "engine/engine_loop.h"

namespace kun {

Engine::Engine(EngineOptions options, std::unique_ptr<Executor> executor)
    : loop_(std::make_unique<Loop>(std::move(options), std::move(executor))) {}

Engine::~Engine() = default;

std::shared_ptr<TokenStream> Engine::generate(GenerateRequest request) {
  return loop_->generate(std::move(request));
}

EngineStats Engine::stats() const {
  return loop_->stats();
}

bool Engine::healthy() const {
  return loop_->healthy();
}

void Engine::drain() {
  loop_->drain();
}

}  // namespace kun
