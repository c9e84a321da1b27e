// Reads Hugging Face's tokenizer.json and tokenizer_config.json into a TokenizerSpec. The files
// come with checkpoints and may be hostile: sizes are bounded, and whatever we cannot reproduce
// exactly is refused by its name, because a tokenizer that is nearly right is wrong.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/status.h"
#include "text/tokenizer_spec.h"

namespace kun {

// `config_path` may be empty or name no file: tokenizer_config.json is optional. It knows BOS and
// EOS, and whether they are added.
Result<TokenizerSpec> read_tokenizer_file(const std::filesystem::path& path,
                                          const std::filesystem::path& config_path = {});

// The same from memory; `config` may be empty. Errors do not name a file.
Result<TokenizerSpec> parse_tokenizer(std::string_view json, std::string_view config = {});

}  // namespace kun
