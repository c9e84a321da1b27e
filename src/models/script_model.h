// A Model whose tokens, stalls, errors and NaN rows are written in a file (models/script_file.h),
// so that everything around models is tested without weights. It keeps its text in the cache it is
// given and reads it back through the block tables: a scheduler that mixes blocks up, skips a token
// or frees too early makes it say something else, or fail.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "models/model.h"

namespace kun {

// The vocabulary is 257 unless the file says otherwise: bytes, and 256 as the end token. Caches
// must be host memory.
Result<std::unique_ptr<const Model>> load_script_model(const std::filesystem::path& path);

// The same from the file's text.
Result<std::unique_ptr<const Model>> make_script_model(std::string_view text);

}  // namespace kun
