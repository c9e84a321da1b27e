// Blocking reads from TokenStreams, for commands that have nothing else to do meanwhile.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "engine/token_stream.h"

namespace kun {

// Wakes one waiting thread when any of its streams has something to read.
class StreamWaiter {
 public:
  void watch(TokenStream& stream);
  void wait();  // returns at once when something came since the last wait

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool ready = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();  // outlives streams' callbacks
};

}  // namespace kun
