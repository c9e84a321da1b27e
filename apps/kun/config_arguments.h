// `--config FILE`: flags from a YAML file, as `vllm serve` reads them.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace kun {

// `arguments` (without the program's name) with every `--config FILE` replaced by the flags of
// FILE: a mapping of flag names without dashes to a value, a list of values, or true and false for
// switches. Flags that the command line gives itself win over the file's.
Result<std::vector<std::string>> expand_config_arguments(std::vector<std::string> arguments);

}  // namespace kun
