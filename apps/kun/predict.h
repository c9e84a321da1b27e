// What a model will do on this machine, before it is loaded: times one layer's operations on this
// machine's own kernels and adds them up.
#pragma once

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"

namespace kun {

struct PredictionLoad {
  int users = 1;            // sequences that decode together
  int context = 1024;       // positions each of them looks back on
  int prompt_tokens = 512;  // of the prompt whose reading is predicted
};

// Prints tokens a second, and where the time goes. Dense decoders only; reads a part of the
// weights.
Status print_prediction(const Checkpoint& checkpoint, Device& device, const PredictionLoad& load);

}  // namespace kun
