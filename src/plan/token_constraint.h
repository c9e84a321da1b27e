// What a sequence may say next, as the engine sees it: a state that follows the sampled tokens and
// tells which may come. Grammars implement it in text/; the scheduler owns one for each sequence,
// and since its state is a function of the output it survives preemption untouched.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "base/token.h"

namespace kun {

// One thread at a time.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // Bit i % 32 of word i / 32: whether token i may come next, as part of the text. What ends it is
  // not the constraint's to know: see ending(). Fails when the mask takes too much to compute.
  virtual Status fill_mask(std::span<std::uint32_t> bits) = 0;

  // Takes in a token that is part of the text. Fails when it could not come next.
  virtual Status advance(Token token) = 0;

  // Takes the last `count` tokens back.
  virtual Status rollback(int count) = 0;

  enum class Ending : std::uint8_t {
    kNotYet,   // more must come
    kAllowed,  // the text may end here
    kReached,  // nothing can follow
  };
  virtual Ending ending() = 0;

  // A state of its own at the same place.
  virtual std::unique_ptr<TokenConstraint> clone() const = 0;
};

}  // namespace kun
