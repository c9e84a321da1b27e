// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kun {

// Tensor name to file name. File names are checked to be just that: no folders, no "..".
// `name` is what errors call the index.
Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view json,
                                                                   std::string_view name);

}  // namespace kun
