// A checkpoint in one GGUF file, or in the parts of a split one.
#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/checkpoint.h"

namespace kun {

Result<std::unique_ptr<Checkpoint>> open_gguf_checkpoint(const std::filesystem::path& path,
                                                         const std::filesystem::path& file);

}  // namespace kun
