#include "server/openapi_schemas.h"

namespace kun {
namespace {

struct Shape {
  std::string_view name;
  std::string_view members;
};

constexpr std::string_view kTokenIds =
    R"("type": ["array", "null"], "items": {"type": "integer", "minimum": 0})";

constexpr std::string_view kTexts =
    R"("anyOf": [{"type": "string", "minLength": 1},
                 {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                 {"type": "null"}])";

constexpr std::string_view kPrompts =
    R"("anyOf": [{"type": "string", "minLength": 1},
                 {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                 {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                 {"type": "array", "minItems": 1, "items": {"type": "array", "minItems": 1,
                   "items": {"type": "integer", "minimum": 0}}}])";

constexpr Shape kShapes[] = {
    {"messages", R"("type": ["array", "null"], "minItems": 1, "items": {"type": "object",
      "required": ["role"], "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array",
          "items": {"type": "object", "required": ["type"], "properties": {
            "type": {"type": "string"}, "text": {"type": "string"}}}}]}}})"},
    {"prompt", kPrompts},
    {"input", R"("anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "minItems": 1}])"},
    {"text_1", kPrompts},
    {"text_2", kPrompts},
    {"early_stopping", R"("enum": [true, false, "never", null])"},
    {"detokenize", R"("enum": [true, null])"},
    {"tokens", R"("type": ["array"], "items": {"type": "integer", "minimum": 0})"},
    {"stop", kTexts},
    {"stop_token_ids", kTokenIds},
    {"allowed_token_ids", kTokenIds},
    {"bad_words", R"("type": ["array", "null"], "items": {"type": "string", "minLength": 1})"},
    {"logit_bias", R"("type": ["object", "null"], "propertyNames": {"pattern": "^[0-9]+$"},
      "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100})"},
    {"stream_options", R"("type": ["object", "null"], "properties": {
      "include_usage": {"type": ["boolean", "null"]},
      "continuous_usage_stats": {"type": ["boolean", "null"]}})"},
    {"tools", R"("type": ["array", "null"], "items": {"type": "object"})"},
};

constexpr std::string_view kSchemas = R"json({
"Error": {"type": "object", "required": ["error"], "properties": {
  "error": {"type": "object", "required": ["message", "type", "param", "code"], "properties": {
    "message": {"type": "string"}, "type": {"type": "string"},
    "param": {"type": ["string", "null"]}, "code": {"type": ["string", "integer", "null"]}}}}},
"AnthropicError": {"type": "object", "required": ["type", "error"], "properties": {
  "type": {"const": "error"},
  "error": {"type": "object", "required": ["type", "message"], "properties": {
    "type": {"type": "string"}, "message": {"type": "string"}}}}},
"Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
  "properties": {
    "prompt_tokens": {"type": "integer", "minimum": 0},
    "completion_tokens": {"type": "integer", "minimum": 0},
    "total_tokens": {"type": "integer", "minimum": 0},
    "prompt_cache_hit_tokens": {"type": "integer", "minimum": 0},
    "prompt_cache_miss_tokens": {"type": "integer", "minimum": 0},
    "prompt_tokens_details": {"type": ["object", "null"], "properties": {
      "cached_tokens": {"type": "integer", "minimum": 0}}},
    "completion_tokens_details": {"type": ["object", "null"], "properties": {
      "reasoning_tokens": {"type": "integer", "minimum": 0}}}}},
"ToolCall": {"type": "object", "required": ["id", "type", "function"], "properties": {
  "id": {"type": "string"}, "type": {"const": "function"},
  "index": {"type": "integer", "minimum": 0},
  "function": {"type": "object", "required": ["name", "arguments"], "properties": {
    "name": {"type": "string"}, "arguments": {"type": "string"}}}}},
"FinishReason": {"enum": ["stop", "length", "tool_calls", "repetition", "abort", "error",
                          "insufficient_system_resource"]},
"ChatCompletion": {"type": "object",
  "required": ["id", "object", "created", "model", "choices", "usage", "system_fingerprint"],
  "properties": {
    "id": {"type": "string"}, "object": {"const": "chat.completion"},
    "created": {"type": "integer"}, "model": {"type": "string"},
    "system_fingerprint": {"type": "string"},
    "choices": {"type": "array", "items": {"type": "object",
      "required": ["index", "message", "logprobs", "finish_reason"], "properties": {
        "index": {"type": "integer", "minimum": 0},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
        "stop_reason": {"type": ["string", "integer", "null"]},
        "logprobs": {"type": ["object", "null"]},
        "message": {"type": "object", "required": ["role", "content"], "properties": {
          "role": {"const": "assistant"}, "content": {"type": ["string", "null"]},
          "reasoning_content": {"type": ["string", "null"]},
          "reasoning": {"type": ["string", "null"]}, "refusal": {"type": "null"},
          "tool_calls": {"type": "array",
            "items": {"$ref": "#/components/schemas/ToolCall"}}}}}}},
    "usage": {"$ref": "#/components/schemas/Usage"}}},
"Completion": {"type": "object",
  "required": ["id", "object", "created", "model", "choices", "usage"], "properties": {
    "id": {"type": "string"}, "object": {"const": "text_completion"},
    "created": {"type": "integer"}, "model": {"type": "string"},
    "system_fingerprint": {"type": "string"},
    "choices": {"type": "array", "items": {"type": "object",
      "required": ["index", "text", "logprobs", "finish_reason"], "properties": {
        "index": {"type": "integer", "minimum": 0}, "text": {"type": "string"},
        "logprobs": {"type": ["object", "null"]},
        "finish_reason": {"$ref": "#/components/schemas/FinishReason"},
        "stop_reason": {"type": ["string", "integer", "null"]}}}},
    "usage": {"$ref": "#/components/schemas/Usage"}}},
"Response": {"type": "object",
  "required": ["id", "object", "created_at", "status", "error", "incomplete_details", "model",
               "output", "usage", "parallel_tool_calls", "tool_choice", "tools"],
  "properties": {
    "id": {"type": "string"}, "object": {"const": "response"},
    "created_at": {"type": "integer"}, "model": {"type": "string"},
    "status": {"enum": ["completed", "incomplete", "failed", "in_progress", "cancelled"]},
    "error": {"type": ["object", "null"]}, "incomplete_details": {"type": ["object", "null"]},
    "output": {"type": "array", "items": {"type": "object", "required": ["id", "type", "status"],
      "properties": {
        "id": {"type": "string"}, "type": {"enum": ["message", "reasoning", "function_call"]},
        "status": {"enum": ["completed", "incomplete", "in_progress"]}}}},
    "usage": {"type": ["object", "null"],
      "required": ["input_tokens", "input_tokens_details", "output_tokens",
                   "output_tokens_details", "total_tokens"],
      "properties": {"input_tokens_details": {"type": "object",
        "required": ["cached_tokens", "cache_write_tokens"]}}},
    "parallel_tool_calls": {"type": "boolean"}, "tools": {"type": "array"}}},
"DeletedResponse": {"type": "object", "required": ["id", "object", "deleted"], "properties": {
  "id": {"type": "string"}, "deleted": {"const": true}}},
"Message": {"type": "object",
  "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
  "properties": {
    "id": {"type": "string"}, "type": {"const": "message"}, "role": {"const": "assistant"},
    "model": {"type": "string"},
    "content": {"type": "array", "items": {"type": "object", "required": ["type"], "properties": {
      "type": {"enum": ["text", "thinking", "tool_use"]}}}},
    "stop_reason": {"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use", null]},
    "stop_sequence": {"type": ["string", "null"]},
    "usage": {"type": "object", "required": ["input_tokens", "output_tokens"], "properties": {
      "input_tokens": {"type": "integer", "minimum": 0},
      "output_tokens": {"type": "integer", "minimum": 0}}}}},
"MessageTokensCount": {"type": "object", "required": ["input_tokens"], "properties": {
  "input_tokens": {"type": "integer", "minimum": 0}}},
"Embeddings": {"type": "object", "required": ["id", "object", "created", "model", "data", "usage"],
  "properties": {
    "id": {"type": "string"}, "object": {"const": "list"}, "created": {"type": "integer"},
    "model": {"type": "string"},
    "data": {"type": "array", "items": {"type": "object",
      "required": ["index", "object", "embedding"], "properties": {
        "index": {"type": "integer", "minimum": 0}, "object": {"const": "embedding"},
        "embedding": {"type": ["array", "string"], "items": {"type": "number"}}}}},
    "usage": {"$ref": "#/components/schemas/Usage"}}},
"Scores": {"type": "object", "required": ["id", "object", "created", "model", "data", "usage"],
  "properties": {
    "id": {"type": "string"}, "object": {"const": "list"}, "created": {"type": "integer"},
    "model": {"type": "string"},
    "data": {"type": "array", "items": {"type": "object",
      "required": ["index", "object", "score"], "properties": {
        "index": {"type": "integer", "minimum": 0}, "object": {"const": "score"},
        "score": {"type": "number", "minimum": -1, "maximum": 1}}}},
    "usage": {"$ref": "#/components/schemas/Usage"}}},
"Model": {"type": "object", "required": ["id", "object", "created", "owned_by"], "properties": {
  "id": {"type": "string"}, "object": {"const": "model"}, "created": {"type": "integer"},
  "owned_by": {"type": "string"}}},
"Models": {"type": "object", "required": ["object", "data"], "properties": {
  "object": {"const": "list"},
  "data": {"type": "array", "items": {"$ref": "#/components/schemas/Model"}}}},
"Tokens": {"type": "object", "required": ["count", "max_model_len", "tokens", "token_strs"],
  "properties": {
    "count": {"type": "integer", "minimum": 0}, "max_model_len": {"type": "integer"},
    "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "token_strs": {"type": ["array", "null"], "items": {"type": "string"}}}},
"Text": {"type": "object", "required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
"Version": {"type": "object", "required": ["version"], "properties": {
  "version": {"type": "string"}}}
})json";

}  // namespace

std::string_view answer_schemas() {
  return kSchemas;
}

std::string_view answer_schema(std::string_view method, std::string_view path) {
  if (path.ends_with("/chat/completions")) return "ChatCompletion";
  if (path.ends_with("/completions")) return "Completion";
  if (path.starts_with("/v1/responses")) return method == "DELETE" ? "DeletedResponse" : "Response";
  if (path == "/v1/messages") return "Message";
  if (path == "/v1/messages/count_tokens") return "MessageTokensCount";
  if (path == "/v1/embeddings") return "Embeddings";
  if (path.ends_with("/score")) return "Scores";
  if (path.ends_with("/models")) return "Models";
  if (path == "/v1/models/{id}") return "Model";
  if (path == "/tokenize") return "Tokens";
  if (path == "/detokenize") return "Text";
  if (path == "/version") return "Version";
  return {};
}

std::string_view field_shape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return shape.members;
  }
  return {};
}

std::string_view error_schema(std::string_view path) {
  return path.starts_with("/v1/messages") ? "AnthropicError" : "Error";
}

}  // namespace kun
