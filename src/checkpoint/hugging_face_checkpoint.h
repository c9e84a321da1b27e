// A checkpoint in a Hugging Face folder: config.json, safetensors, maybe generation_config.json.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace kun {

// What a folder says besides weights, under the names and with the defaults that models know.
struct HuggingFaceConfig {
  Config config{""};
  GenerationDefaults defaults;
  std::vector<FileStamp> sources;  // what weights depend on: not generation_config.json
};
Result<HuggingFaceConfig> open_hugging_face_config(const std::filesystem::path& folder);

Result<std::unique_ptr<Checkpoint>> open_hugging_face_checkpoint(
    const std::filesystem::path& folder);

}  // namespace kun
