// The tools a request offers, and whether the model may, must or must not call one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/request_json.h"
#include "server/server_limits.h"

namespace kun {

struct ChatTool {
  std::string name;
  std::string parameters;  // JSON Schema; empty: anything
  bool strict = false;     // calls must validate, the model's own choice or not
};

enum class ToolUse : std::uint8_t { kNone, kAuto, kRequired, kNamed };

struct ChatTools {
  std::vector<ChatTool> all;
  std::string json;  // the array for the template; empty when the model shall know of none
  ToolUse choice = ToolUse::kAuto;
  std::string chosen;    // with kNamed
  bool parallel = true;  // several calls in one answer

  // Calls in the answer are looked for.
  bool wanted() const { return !all.empty() && choice != ToolUse::kNone; }
  bool forced() const { return choice == ToolUse::kRequired || choice == ToolUse::kNamed; }
};

// Reads tools, tool_choice and parallel_tool_calls. Problems are left in `reader`.
ChatTools read_chat_tools(FieldReader& reader, const ServerLimits& limits);

}  // namespace kun
