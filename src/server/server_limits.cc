#include "server/server_limits.h"

#include <fmt/format.h>

namespace kun {

std::string describe(const ServerLimits& l) {
  std::string text;
  const auto line = [&](const char* name, auto value, const char* unit) {
    text += fmt::format("  {:<24}{}{}\n", name, value, unit);
  };
  line("connections_max", l.connections_max, "");
  line("listen_backlog", l.listen_backlog, "");
  line("idle_timeout", l.idle_timeout.count(), " ms");
  line("header_timeout", l.header_timeout.count(), " ms");
  line("body_timeout", l.body_timeout.count(), " ms");
  line("write_timeout", l.write_timeout.count(), " ms");
  line("keepalive_interval", l.keepalive_interval.count(), " ms");
  line("ttft_slo", l.ttft_slo.count(), " ms");
  line("tpot_slo", l.tpot_slo.count(), " ms");
  line("timeout", l.timeout.count(), " ms");
  line("header_bytes_max", l.header_bytes_max, " bytes");
  line("body_bytes_max", l.body_bytes_max, " bytes");
  line("bodies_bytes_max", l.bodies_bytes_max, " bytes");
  line("json_depth_max", l.json_depth_max, "");
  line("json_bytes_max", l.json_bytes_max, " bytes");
  line("messages_max", l.messages_max, "");
  line("tools_max", l.tools_max, "");
  line("prompts_max", l.prompts_max, "");
  line("embedding_inputs_max", l.embedding_inputs_max, "");
  line("choices_max", l.choices_max, "");
  line("stop_strings_max", l.stop_strings_max, "");
  line("stop_string_bytes_max", l.stop_string_bytes_max, " bytes");
  line("stop_tokens_max", l.stop_tokens_max, "");
  line("logit_bias_max", l.logit_bias_max, "");
  line("logprobs_max", l.logprobs_max, "");
  line("text_queue_max", l.text_queue_max, "");
  line("responses_max", l.responses_max, "");
  line("responses_bytes_max", l.responses_bytes_max, " bytes");
  line("tokens_at_once_max", l.tokens_at_once_max, "");
  line("answer_bytes_max", l.answer_bytes_max, " bytes");
  line("pending_bytes_max", l.pending_bytes_max, " bytes");
  return text;
}

}  // namespace kun
