// Why a request is not served, in a form that clients may act on: a word that never changes, and
// when it is worth trying again. Plain data; from the scheduler through the engine to the server.
#pragma once

#include <cstdint>
#include <string_view>

namespace kun {

using Microseconds = std::int64_t;

struct Refusal {
  std::string_view code;         // one of those below; empty: none of them
  Microseconds retry_after = 0;  // 0: nothing is known about that
};

inline constexpr std::string_view kCodeQueueFull = "queue_full";
// The deadline cannot be kept even by a server that does nothing else.
inline constexpr std::string_view kCodeDeadlineImpossible = "deadline_impossible";
// It cannot be kept behind what waits and runs now: refused at once.
inline constexpr std::string_view kCodeDeadlineUnreachable = "deadline_unreachable";
// It could have been when the request came, and cannot any more: dropped from the line.
inline constexpr std::string_view kCodeDeadlineMissed = "deadline_missed";
inline constexpr std::string_view kCodeTimeout = "timeout";
inline constexpr std::string_view kCodeMemoryExhausted = "memory_exhausted";

// What a request wants to be kept, as durations from the moment it is added; 0: nothing.
struct Deadlines {
  Microseconds first_token = 0;  // until its first token
  Microseconds per_token = 0;    // between tokens, on average
  Microseconds total = 0;        // until its last token, which ends it wherever it is

  bool any() const { return first_token > 0 || per_token > 0 || total > 0; }
};

}  // namespace kun
