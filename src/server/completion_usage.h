// What a request has cost, in the spellings of OpenAI and of DeepSeek.
#pragma once

#include <cstdint>

#include "server/json_writer.h"

namespace kun {

struct CompletionUsage {
  std::int64_t prompt_count = 0;
  std::int64_t cached_count = 0;
  std::int64_t output_count = 0;
  std::int64_t reasoning_count = 0;  // part of output_count
};

// `with_reasoning`: whether the share of thoughts is told.
inline void write_usage(JsonWriter& json, const CompletionUsage& usage, bool with_reasoning) {
  json.begin_object();
  json.key("prompt_tokens").integer(usage.prompt_count);
  json.key("completion_tokens").integer(usage.output_count);
  json.key("total_tokens").integer(usage.prompt_count + usage.output_count);
  json.key("prompt_tokens_details").begin_object();
  json.key("cached_tokens").integer(usage.cached_count).end_object();
  if (with_reasoning) {
    json.key("completion_tokens_details").begin_object();
    json.key("reasoning_tokens").integer(usage.reasoning_count).end_object();
  }
  json.key("prompt_cache_hit_tokens").integer(usage.cached_count);
  json.key("prompt_cache_miss_tokens").integer(usage.prompt_count - usage.cached_count);
  json.end_object();
}

}  // namespace kun
