// How beam search looks for the likeliest continuations of a prompt. Names are vLLM's; what they
// mean where vLLM leaves it open is what Hugging Face transformers documents.
#pragma once

#include <cstdint>
#include <memory>

#include "base/token.h"

namespace kun {

// When to look no further although there are beams that could go on.
enum class EarlyStopping : std::uint8_t {
  kWhenSettled,  // false: as many hypotheses as beams are finished, and the best beam, were it over
                 // now, would not be among them
  kWhenEnough,   // true: as many hypotheses as beams are finished
  kNever,        // "never": only when no beam can become one of the best at any length
};

struct BeamParams {
  int width = 0;  // beams; 0: no beam search
  // A hypothesis of n tokens, its end token included, is worth (sum of logprobs) /
  // n^length_penalty.
  double length_penalty = 1.0;
  EarlyStopping early_stopping = EarlyStopping::kWhenSettled;
};

// Whether an output is over for reasons that tokens alone do not show, such as a stop string.
class OutputWatch {
 public:
  virtual ~OutputWatch() = default;

  // Takes in the next token; true: the output is over with it.
  virtual bool take(Token token) = 0;

  // A watch of its own at the same place.
  virtual std::unique_ptr<OutputWatch> clone() const = 0;
};

}  // namespace kun
