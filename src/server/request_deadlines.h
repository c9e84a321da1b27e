// What a request wants to be kept of time: ttft_slo_ms, tpot_slo_ms and ttlt_slo_ms as xLLM names
// them, timeout_ms and ttft_timeout_ms as rtp-llm does.
#pragma once

#include <chrono>

#include "plan/refusal.h"
#include "server/json_writer.h"
#include "server/request_json.h"
#include "server/server_limits.h"

namespace kun {

// Durations from the arrival of the request. What it leaves out is the server's default, and 0
// means none.
Deadlines read_deadlines(FieldReader& reader, const ServerLimits& limits);

// For requests of another dialect that are read as chats: the same fields, as they are.
void copy_deadlines(FieldReader& reader, JsonView request, JsonWriter& json);

// The same from now on, `elapsed` after the arrival. What has passed already becomes the shortest
// time there is, which the engine refuses.
Deadlines remaining(const Deadlines& deadlines, std::chrono::steady_clock::duration elapsed);

}  // namespace kun
