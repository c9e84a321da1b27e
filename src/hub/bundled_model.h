// Models that travel inside the program: small enough for it, and there to be tried where no hub
// can be reached. `kun pull` unpacks them like any other model. Their files lie in models/ and are
// taken into the program's read-only data by the assembler (bundled_files.S.in).
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include "base/status.h"
#include "hub/hub.h"

namespace kun {

struct BundledFile {
  std::string_view name;
  std::string_view bytes;
};

struct BundledModel {
  std::string_view name;
  std::span<const BundledFile> files;
};

// The bundled model of that name; null if there is none.
const BundledModel* find_bundled_model(std::string_view name);

// Writes what is missing or different into `folder`. Each file appears whole or not at all.
Result<PulledModel> unpack_bundled_model(const BundledModel& model,
                                         const std::filesystem::path& folder);

}  // namespace kun
