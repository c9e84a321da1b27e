// The one function in which server and engine meet: tokens in, a stream of tokens out. Text, JSON
// and HTTP stay on one side; scheduling and devices on the other.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/token_stream.h"
#include "plan/beam_params.h"
#include "plan/pooling.h"
#include "plan/sampling_params.h"
#include "plan/tenant_stats.h"
#include "plan/token_constraint.h"

namespace kun {

struct GenerateRequest {
  std::vector<Token> prompt;
  int output_count_max = 16;
  SamplingParams sampling;        // output_count_min and seed included
  std::vector<Token> end_tokens;  // reported as kStop; not part of the output text
  bool ignore_end_tokens = false;
  int choice_count = 1;           // n independent continuations of the same prompt
  int prompt_logprob_count = -1;  // >= 0: how likely the prompt is, and so many others per token
  int priority = 0;               // among the tenant's own; lower runs earlier, as in vLLM
  std::string tenant;             // who pays; requests without a name are one tenant's
  double tenant_weight = 1.0;     // share of the service, against other tenants' weights
  Deadlines deadlines;            // from generate() on
  std::string cache_salt;         // prompts under different salts never share cache
  std::shared_ptr<const TokenConstraint> constraint;  // of the output; null: none
  // Not kNone: the prompt is read and nothing is said; the last event holds StreamEvent::pooled.
  // What concerns the output counts for nothing then.
  Pooling pooling = Pooling::kNone;
  // With a width: the choices are the best hypotheses of a beam search, best first. Each comes in
  // one event, when the search is over. `watch` may end a hypothesis, as kStop; null: nothing does.
  BeamParams beams{};
  std::shared_ptr<const OutputWatch> watch;
};

// Upper bounds, inclusive, of EngineStats::step_token_buckets: vLLM's vllm:iteration_tokens_total.
inline constexpr std::array kStepTokenBounds = {1,   8,    16,   32,   64,   128,  256,
                                                512, 1024, 2048, 4096, 8192, 16384};

// Point-in-time figures of the engine, for /metrics and logs. Counters only grow.
struct EngineStats {
  int running_count = 0;
  int waiting_count = 0;
  double cache_usage = 0.0;              // share of KV blocks held, 0..1
  std::uint64_t prompt_token_count = 0;  // prompt tokens of admitted sequences
  std::uint64_t computed_prompt_token_count = 0;
  std::uint64_t generated_token_count = 0;
  std::uint64_t prefix_query_token_count = 0;
  std::uint64_t prefix_hit_token_count = 0;
  std::uint64_t preemption_count = 0;
  std::uint64_t corrupted_count = 0;
  std::uint64_t draft_count = 0;  // times that drafts of a sequence were verified
  std::uint64_t draft_token_count = 0;
  std::uint64_t accepted_token_count = 0;           // of those
  std::vector<std::uint64_t> accepted_by_position;  // [place among a step's drafts]; none: all off
  std::uint64_t step_count = 0;
  // Steps by token count, not cumulative: one per bound of kStepTokenBounds and one for the rest.
  std::vector<std::uint64_t> step_token_buckets;
  std::uint64_t step_token_sum = 0;
  std::uint64_t late_count = 0;  // choices dropped or ended because of deadlines
  std::vector<TenantStats> tenants;
};

// Thread-safe.
class Generator {
 public:
  virtual ~Generator() = default;

  // Never blocks. Refusals (a prompt that can never fit: kInvalidArgument; a full waiting line:
  // kResourceExhausted; draining, or deadlines that cannot be kept: kUnavailable) arrive as the
  // stream's first and only event. Letting go of the stream cancels the generation at the next
  // step.
  virtual std::shared_ptr<TokenStream> generate(GenerateRequest request) = 0;

  virtual EngineStats stats() const = 0;

  // False when the engine is dead, or work is pending and nothing has moved for 5 seconds.
  virtual bool healthy() const = 0;

  // Refuses new requests from now on; running ones go on.
  virtual void drain() = 0;
};

}  // namespace kun
