// Finds the chat template that comes with a model.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/status.h"
#include "checkpoint/gguf_file.h"

namespace kun {

// From a Hugging Face folder: chat_template.jinja, else tokenizer_config.json's "chat_template",
// which is a string or a list of named ones ("default" is taken). nullopt when there is none.
Result<std::optional<std::string>> read_chat_template(const std::filesystem::path& folder);

// From GGUF metadata (tokenizer.chat_template).
std::optional<std::string> find_chat_template(const GgufFile& file);

}  // namespace kun
