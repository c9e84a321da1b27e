// Fields that are text or tokens, once or several times: `prompt` of completions, `input` of
// embeddings, the texts of a score.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/token.h"
#include "server/request_json.h"

namespace kun {

struct TextInput {
  std::optional<std::string_view> text;  // inside of the request's document; nothing: ids instead
  std::vector<Token> ids;
};

// From a string, strings, token ids, or arrays of token ids; at least one and at most `count_max`.
// Problems are left in `reader`, under the field's name.
std::vector<TextInput> read_text_inputs(FieldReader& reader, std::string_view name, JsonView value,
                                        int count_max, int vocabulary_size);

}  // namespace kun
