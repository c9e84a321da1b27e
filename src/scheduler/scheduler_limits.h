// What bounds a scheduler, and how it shares what it has; passed by value.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/refusal.h"

namespace kun {

struct SchedulerLimits {
  int tokens_per_step_max = 2048;  // upper end of the adaptive budget
  int tokens_per_step_min = 64;    // lower end
  // How long a step may take in which prompts join running readers; the budget adapts to it.
  Microseconds step_time_target = 0;  // 0: decode_slowdown_max decides
  double decode_slowdown_max = 0.0;   // times a step without prompts; 0: always tokens_per_step_max
  int sequences_running_max = 256;
  int sequences_waiting_max = 1024;
  int context_length_max = 4096;
  std::vector<int> block_counts;  // [KV group]: blocks in the pool
  bool prefix_caching = true;
  std::uint64_t label_key[2] = {0, 0};  // keys the prefix labels; random in production

  // Drafts that a decoding sequence may have in a step; 0: no speculation.
  int draft_count_max = 0;
  int draft_sequences_max = 0;  // no drafts while more than this many are decoding; 0: any number
  bool adaptive_drafts = true;  // as many as pay; else always draft_count_max

  // Tokens that a tenant may be served before its turn after it had nothing to do; see tenants.h.
  int tenant_credit = 2048;
};

}  // namespace kun
