// A plan trace: one JSON object per line and step, for looking at a schedule afterwards and for
// replaying it against the scheduler's promises. It holds counts and block ids, never a token: a
// trace can be sent to somebody who must not read the prompts.
#pragma once

#include <string>

#include "kv/kv_layout.h"
#include "plan/batch_plan.h"
#include "plan/step_result.h"
#include "scheduler/scheduler.h"

namespace kun {

// The first line: {"kun_trace":1,"tokens_per_step_max":N,
//   "groups":[{"tokens_per_block":N,"block_count":N},...]}
std::string trace_header(const SchedulerLimits& limits, const KvLayout& layout);

// A step's line, written when its result is there; no line feed at the end:
// {"step":N,"now":MICROSECONDS,"copies":[[group,from,to],...],
//  "slices":[{"sequence":N,"choice":N,"first":N,"count":N,"drafts":N,"wanted":N,
//             "blocks":[[id,...],...]},...],
//  "status":"ok","results":[{"tokens":N,"corrupted":false},...]}
std::string trace_line(const BatchPlan& plan, const StepResult& result, Microseconds now);

}  // namespace kun
