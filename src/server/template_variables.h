// What a request says to the chat template beside messages and tools: thinking, effort, documents
// and chat_template_kwargs, as one JSON object of variables.
#pragma once

#include <optional>
#include <string>

#include "server/dialect.h"
#include "server/request_json.h"

namespace kun {

struct TemplateVariables {
  std::string json;                    // empty: none
  std::optional<bool> thinking;        // as the request has it
  std::optional<int> thinking_budget;  // Anthropic's thinking.budget_tokens
};

// Problems are left in `reader`.
TemplateVariables read_template_variables(FieldReader& reader, Dialect dialect);

}  // namespace kun
