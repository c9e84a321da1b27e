// What a repository holds, and which of it a model needs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/hub.h"

namespace kun {

// One page of {endpoint}/api/models/{name}/tree/{revision}?recursive=1, appended to `files`.
Status parse_tree_page(std::string_view json, std::vector<HubFile>& files);

// {endpoint}/api/models/{name}/revision/{revision}: names only, for hubs without /tree.
Result<std::vector<HubFile>> parse_siblings(std::string_view json);

// With a pattern: what matches it. Without: configuration, tokenizer, chat template and weights, in
// safetensors if there are any, else the one GGUF model. kInvalidArgument lists the choices.
Result<std::vector<HubFile>> select_files(const std::vector<HubFile>& files,
                                          const std::string& pattern);

}  // namespace kun
