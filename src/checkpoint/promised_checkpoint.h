// A checkpoint of which only config.json is at hand: it has whatever a model asks for, stored in
// bfloat16, and none of the values. What a model will need can be planned with it before anything
// large is downloaded.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"

namespace kun {

// Loading from it fails; see plan_weights().
Result<std::unique_ptr<Checkpoint>> open_promised_checkpoint(const std::filesystem::path& folder);

}  // namespace kun
