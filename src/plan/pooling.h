// What becomes of the hidden states of a prompt that is read to be compared, not to be continued.
#pragma once

#include <cstdint>

namespace kun {

// The hidden states are those behind the model's last norm, which the output head would read.
enum class Pooling : std::uint8_t {
  kNone,  // nothing: the prompt is continued
  kLast,  // that of the last token
  kMean,  // the mean over all tokens
};

}  // namespace kun
