// The reader's end of one generation. Letting go of it cancels the generation, so a client that
// hangs up frees its cache blocks without anyone having to remember to.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "base/status.h"
#include "plan/refusal.h"
#include "plan/step_result.h"

namespace kun {

enum class FinishReason : std::uint8_t {
  kStop,     // an end token, the reader found a stop string, or the prompt is pooled
  kLength,   // output_count_max, or the context is full
  kTimeout,  // the request's time was over
  kAbort,    // cancelled, or the engine is going down
  kError,    // see StreamEvent::status
};

struct StreamUsage {
  int prompt_count = 0;
  int cached_count = 0;                 // prompt tokens found in the prefix cache
  int output_count = 0;                 // of this choice, end token included
  std::int64_t queue_microseconds = 0;  // from generate() to the step of its first token
};

// New tokens of one choice, and at its end the reason. After every choice has ended there is
// nothing more to come.
struct StreamEvent {
  std::uint32_t choice = 0;
  std::vector<SampledToken> tokens;
  std::vector<SampledToken> prompt_scores;  // of the next prompt tokens, from the second on
  std::vector<float> pooled;  // [hidden], not normalized: the whole result of a pooling request
  std::optional<FinishReason> finish;
  std::optional<Token> end_token;  // the token that stopped it; also last in `tokens`
  StreamUsage usage;               // complete when `finish` is set
  Status status;                   // not ok only with kError, or with a refusal
  Refusal refusal;                 // more about such a status
};

// One writer (the engine thread), one reader. Bounded by the outputs the request may have.
class TokenStream {
 public:
  // The next event, with at most `tokens_max` (> 0) tokens: the rest of a longer one, its end
  // included, is the next event. nullopt when there is none now. Never blocks.
  std::optional<StreamEvent> poll(std::size_t tokens_max = static_cast<std::size_t>(-1));

  // `ready` is called by the writer after events arrive while none were waiting; it must be quick
  // and may not call back into the stream. Called at once when events are waiting already.
  void set_ready_callback(std::function<void()> ready);

  // The reader found a stop string: the choice ends as kStop, and what ran past the first
  // `kept_count` output tokens is dropped and not billed. The final event follows.
  void finish(std::uint32_t choice, int kept_count);

  // --- The writer's side ------------------------------------------------------------------------

  void push(StreamEvent event);

  struct StopRequest {
    std::uint32_t choice = 0;
    int kept_count = 0;
  };
  std::vector<StopRequest> take_stop_requests();

 private:
  std::mutex mutex_;
  std::vector<StreamEvent> events_;
  std::vector<StopRequest> stop_requests_;  // not yet taken by the writer
  std::vector<StopRequest> stopped_;        // choices whose end the reader already decided
  std::function<void()> ready_;
};

}  // namespace kun
