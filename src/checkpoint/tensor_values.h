// What both kinds of checkpoint say and do about a single tensor.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/weight_view.h"

namespace kun {

Status missing_tensor(const std::filesystem::path& path, std::string_view name);
Status wrong_rank(const std::filesystem::path& path, std::string_view name, int expected,
                  int found);
Status unsupported_format(const std::filesystem::path& path, std::string_view name,
                          std::string_view format);

// The floats of a view with a single row.
std::vector<float> row_values(const WeightView& row);

}  // namespace kun
