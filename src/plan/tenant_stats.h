// What a tenant has had so far, for metrics. Counters only grow, as long as the tenant is
// remembered.
#pragma once

#include <cstdint>
#include <string>

namespace kun {

struct TenantStats {
  std::string name;
  double weight = 1.0;
  int running_count = 0;  // sequences
  int waiting_count = 0;
  std::uint64_t prompt_token_count = 0;  // computed; again after preemption does not count
  std::uint64_t cached_token_count = 0;
  std::uint64_t output_token_count = 0;
  std::uint64_t preemption_count = 0;
  std::uint64_t refused_count = 0;  // line full, or deadlines that cannot be kept
};

}  // namespace kun
