// What a model's weights will need in memory, and what a token will cost in bytes read. A loader
// adds this up instead of loading, so that the plan is of what the model would really ask for.
#pragma once

#include <cstdint>

namespace kun {

struct WeightPlan {
  std::int64_t packed_bytes = 0;  // matrices as the device will hold them
  std::int64_t table_bytes = 0;   // embeddings, which stay in the mapped file
  std::int64_t token_bytes = 0;   // of the packed ones, what one token of one user reads
  std::int64_t module_bytes = 0;  // beside all these, a next-token module (MTP) that is asked for
};

// Of matrices that are alike, how many a token reads while an answer is generated: the chosen of
// all experts; none of those that only prompts use.
struct ReadShare {
  int read = 1;
  int of = 1;
};

}  // namespace kun
