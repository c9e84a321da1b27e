// What --quantization means: vLLM's names of checkpoint formats, which the files must agree with,
// and of ways to quantize while loading.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"

namespace kun {

std::vector<std::string_view> quantization_names();

// Fails unless `name` is one of them.
Status check_quantization_name(std::string_view name);

// What the weights of `checkpoint` become in memory under `name`.
Result<WeightTarget> target_of_quantization(std::string_view name, const Checkpoint& checkpoint);

}  // namespace kun
