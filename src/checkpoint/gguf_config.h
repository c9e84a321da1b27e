// GGUF metadata in Hugging Face's words: what config.json and generation_config.json of the model
// would have said.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/status.h"
#include "checkpoint/config.h"
#include "checkpoint/gguf_file.h"

namespace kun {

// Tensors by their Hugging Face names, of all parts of a split model.
using GgufTensorMap = std::map<std::string, const GgufTensor*, std::less<>>;

// Architectures llama, qwen2 and qwen3. Fails on other ones, by name, and on settings that have no
// counterpart which these models could honour.
Result<Config> config_of_gguf(const GgufFile& file, const GgufTensorMap& tensors);

Result<Config> generation_config_of_gguf(const GgufFile& file);

}  // namespace kun
