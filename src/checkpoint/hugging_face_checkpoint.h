// A checkpoint in a Hugging Face folder: config.json, safetensors, maybe generation_config.json.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"

namespace kun {

Result<std::unique_ptr<Checkpoint>> open_hugging_face_checkpoint(
    const std::filesystem::path& folder);

}  // namespace kun
